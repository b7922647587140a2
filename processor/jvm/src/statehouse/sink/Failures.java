package statehouse.sink;

import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidPidMappingException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TransactionAbortedException;
import org.apache.kafka.common.errors.UnknownProducerIdException;

/** What a transactional producer's failure means for what to do next, as statehouse/kafka/transactions.py has it. */
enum Failures {
    /** A newer producer with the same transactional id has started. */
    FENCED,
    /** Another producer may succeed. */
    AGAIN,
    /** Trying again changes nothing. */
    REFUSED;

    /** Only clients from 3.8 on have the class (KIP-890). */
    private static final String ABORTABLE = "TransactionAbortableException";

    static Failures of(Throwable failure) {
        Failures found = REFUSED;
        for (Throwable each = failure; each != null; each = each.getCause()) {
            if (each instanceof ProducerFencedException || each instanceof InvalidProducerEpochException) {
                return FENCED;
            }
            if (each instanceof AuthorizationException || each instanceof AuthenticationException) {
                return REFUSED;
            }
            if (each instanceof RetriableException
                    || each instanceof InvalidPidMappingException
                    || each instanceof InvalidTxnStateException
                    || each instanceof OutOfOrderSequenceException
                    || each instanceof UnknownProducerIdException
                    || each instanceof TransactionAbortedException
                    || each.getClass().getSimpleName().equals(ABORTABLE)) {
                found = AGAIN;
            }
        }
        return found;
    }

    /** What the broker, or the client, says. */
    static String text(Throwable failure) {
        Throwable told = failure;
        for (Throwable each = failure; each != null; each = each.getCause()) {
            if (each instanceof ApiException || (each instanceof KafkaException && each.getCause() == null)) {
                told = each;
            }
        }
        return told.getClass().getSimpleName() + ": " + told.getMessage();
    }
}
