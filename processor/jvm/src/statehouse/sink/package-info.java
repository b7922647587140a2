/**
 * The sink's task: writes a micro-batch's records to Kafka, in one transaction for each sink partition.
 *
 * <p>Python decides (processor/sink): outputs, layouts, target, bounds. These classes carry it out, called by
 * py4j; they are no API of anybody else's.
 */
package statehouse.sink;
