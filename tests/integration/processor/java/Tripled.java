import java.util.List;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.Function;

/** A function that tasks run: executors must find its class. */
public final class Tripled implements Function<Integer, Integer> {
    @Override
    public Integer call(final Integer number) {
        return number * 3;
    }

    /** Run it in two tasks. */
    public static List<Integer> of(final JavaSparkContext context, final List<Integer> numbers) {
        return context.parallelize(numbers, 2).map(new Tripled()).collect();
    }
}
