/** Files that Spark writes: how those of a checkpoint get onto a disk. */
package statehouse.files;
