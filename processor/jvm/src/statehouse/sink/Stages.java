package statehouse.sink;

import java.io.Serializable;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Objects;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction2;

/**
 * The stages that write a batch's rows.
 *
 * <p>They are classes, and no closures: for each closure that an RDD is given, the driver reads the byte code of the
 * class around it, which took a tenth of a small batch's time. The methods that Spark's own API for Java offers make
 * closures of what they are given.
 */
final class Stages {
    private final Target target;
    private final int column;
    private final Task task;

    /** Prepares. `column`: which one of a row has the struct of a record. */
    Stages(Target target, int column, Task task) {
        this.target = target;
        this.column = column;
        this.task = task;
    }

    /** One stage reads and writes; returns the reports of its tasks. */
    List<String> writeWhereRead(JavaRDD<InternalRow> rows) {
        return reports(rows.rdd(), new RowsWriter(target, column, task));
    }

    /** Records go to the task that writes their sink partition; returns the reports of so many tasks. */
    List<String> writePlaced(JavaRDD<InternalRow> rows, int tasks) {
        ClassTag<Integer> partitions = tag(Integer.class);
        ClassTag<byte[]> pieces = tag(byte[].class);
        Packed packed = new Packed(rows.rdd(), target, column);
        JavaPairRDD<Integer, byte[]> placed =
                JavaPairRDD.fromRDD(packed, partitions, pieces).partitionBy(new Chunks.ByPartition(tasks));
        return reports(placed.rdd(), new ChunksWriter(task));
    }

    private static <T> List<String> reports(RDD<T> of, Writer<T> writer) {
        String[] reports = (String[]) of.sparkContext().runJob(of, writer, tag(String.class));
        return Arrays.stream(reports).filter(Objects::nonNull).toList();
    }

    @SuppressWarnings("unchecked")
    private static <T> ClassTag<T> tag(Class<? super T> of) {
        return (ClassTag<T>) ClassTag$.MODULE$.apply(of);
    }

    /** What a task of the last stage does; it returns its report, or null if it had no records. */
    private abstract static class Writer<T> extends AbstractFunction2<TaskContext, scala.collection.Iterator<T>, String>
            implements Serializable {}

    private static final class RowsWriter extends Writer<InternalRow> {
        private final Target target;
        private final int column;
        private final Task task;

        RowsWriter(Target target, int column, Task task) {
            this.target = target;
            this.column = column;
            this.task = task;
        }

        @Override
        public String apply(TaskContext context, scala.collection.Iterator<InternalRow> rows) {
            return task.write(records(target, column, rows));
        }
    }

    private static final class ChunksWriter extends Writer<Tuple2<Integer, byte[]>> {
        private final Task task;

        ChunksWriter(Task task) {
            this.task = task;
        }

        @Override
        public String apply(TaskContext context, scala.collection.Iterator<Tuple2<Integer, byte[]>> chunks) {
            return task.write(Chunks.unpack(javaIterator(chunks)));
        }
    }

    /** The records of rows, by sink partition. */
    private static final class Packed extends RDD<Tuple2<Integer, byte[]>> {
        private final Target target;
        private final int column;

        Packed(RDD<InternalRow> rows, Target target, int column) {
            super(rows, tag(Tuple2.class));
            this.target = target;
            this.column = column;
        }

        @Override
        public Partition[] getPartitions() {
            return this.<InternalRow>firstParent(tag(InternalRow.class)).partitions();
        }

        @Override
        public scala.collection.Iterator<Tuple2<Integer, byte[]>> compute(Partition split, TaskContext context) {
            RDD<InternalRow> rows = firstParent(tag(InternalRow.class));
            Iterator<Tuple2<Integer, byte[]>> chunks =
                    Chunks.pack(records(target, column, rows.iterator(split, context)));
            return new AbstractIterator<>() {
                @Override
                public boolean hasNext() {
                    return chunks.hasNext();
                }

                @Override
                public Tuple2<Integer, byte[]> next() {
                    return chunks.next();
                }
            };
        }
    }

    private static Iterator<Record> records(Target target, int column, scala.collection.Iterator<InternalRow> rows) {
        Rows made = new Rows(target);
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return rows.hasNext();
            }

            @Override
            public Record next() {
                return made.record(rows.next(), column);
            }
        };
    }

    private static <T> Iterator<T> javaIterator(scala.collection.Iterator<T> of) {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return of.hasNext();
            }

            @Override
            public T next() {
                return of.next();
            }
        };
    }
}
