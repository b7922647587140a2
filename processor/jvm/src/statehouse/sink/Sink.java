package statehouse.sink;

import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;

/** What the driver calls: one call writes a batch. */
public final class Sink {
    /** The driver makes one. */
    public Sink() {}

    /**
     * Writes a batch; returns the reports of its tasks, as a JSON list.
     *
     * @param frame a Dataset; the struct of a record is its column `column`
     * @param described the target, as Target reads it
     * @param tasks how many tasks write
     * @param readsToo whether one task reads the source, too: that costs less than a shuffle, if it hasn't much to read
     * @param cacheBytes the part of the record cache of each task
     */
    public String write(
            Object frame, int column, String described, long batch, int tasks, boolean readsToo, long cacheBytes) {
        Target target = Target.of(described);
        Task task = new Task(target, batch, cacheBytes);
        JavaRDD<InternalRow> rows = rows(frame);
        if (tasks == 1 && readsToo) {
            rows = rows.coalesce(1);
        }
        Stages stages = new Stages(target, column, task);
        boolean isOneTask = tasks == 1 && rows.getNumPartitions() == 1;
        List<String> reports = isOneTask ? stages.writeWhereRead(rows) : stages.writePlaced(rows, tasks);
        return "[" + String.join(",", reports) + "]";
    }

    /** Lets nobody write a batch before this one to any sink partition any more. */
    public void claim(String described, long batch) {
        Target target = Target.of(described);
        List<Callable<Boolean>> calls = new ArrayList<>();
        for (int each = 0; each < target.partitions; each++) {
            int partition = each;
            calls.add(
                    () -> {
                        try (PartitionWriter writer = new PartitionWriter(target, partition)) {
                            writer.claim(batch);
                            return true;
                        }
                    });
        }
        Calls.all(calls);
    }

    /**
     * The rows that a batch is already planned to have, without planning it again: that would take as long as all else.
     *
     * <p>By reflection, because Spark 4 has moved the class; the names are the same from 3.5 on.
     */
    @SuppressWarnings("unchecked")
    private static JavaRDD<InternalRow> rows(Object frame) {
        Object execution = call(frame, "queryExecution");
        Object plan = call(execution, "logical");
        boolean isPlanned = plan.getClass().getSimpleName().equals("LogicalRDD");
        RDD<InternalRow> rows = (RDD<InternalRow>) (isPlanned ? call(plan, "rdd") : call(execution, "toRdd"));
        return rows.toJavaRDD();
    }

    private static Object call(Object on, String method) {
        try {
            return on.getClass().getMethod(method).invoke(on);
        } catch (InvocationTargetException failure) {
            throw failure.getCause() instanceof RuntimeException cause ? cause : new IllegalStateException(failure);
        } catch (ReflectiveOperationException failure) {
            throw new IllegalStateException("this Spark has no " + method + " of " + on.getClass().getName(), failure);
        }
    }
}
