package statehouse.files;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Writes the files of a checkpoint on a local disk, and starts no process for it.
 *
 * <p>Hadoop sets the permissions of each file and folder that it makes. Without its native library, as in Spark from
 * pip, it starts a {@code chmod} process for that. Here they have those that the process gives to all it makes (umask).
 *
 * <p>As with the class above, a file is there with all its content, or it is not there, whenever the process ends. Its
 * content is not forced onto the disk (fsync): if the machine loses its power, the newest files may be empty. Better
 * than above, a file that must not be replaced never is: of two writers that end together, one fails.
 *
 * <p>Paths of other file systems are left to the class above.
 */
public final class LocalFiles extends FileSystemBasedCheckpointFileManager {
    private final boolean isLocal = isLocal();

    /** Spark makes it so, by name. */
    public LocalFiles(final Path path, final Configuration configuration) {
        super(path, configuration);
    }

    @Override
    public void mkdirs(final Path path) {
        if (!isLocal) {
            super.mkdirs(path);
            return;
        }
        try {
            makeFolder(local(path));
        } catch (IOException error) {
            throw undeclared(error);
        }
    }

    @Override
    public FSDataOutputStream createTempFile(final Path path) {
        if (!isLocal) {
            return super.createTempFile(path);
        }
        try {
            final java.nio.file.Path file = local(path);
            makeFolder(file.getParent());
            return new FSDataOutputStream(new BufferedOutputStream(Files.newOutputStream(file)), null);
        } catch (IOException error) {
            throw undeclared(error);
        }
    }

    @Override
    public void renameTempFile(final Path from, final Path to, final boolean overwriteIfPossible) {
        if (!isLocal) {
            super.renameTempFile(from, to, overwriteIfPossible);
            return;
        }
        try {
            final java.nio.file.Path target = local(to);
            // Hadoop's checksums of a file that was there before: it would refuse to read the new one by them.
            Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
            if (overwriteIfPossible) {
                Files.move(local(from), target, StandardCopyOption.ATOMIC_MOVE);
            } else {
                moveAsNew(from, to);
            }
        } catch (IOException error) {
            throw undeclared(error);
        }
    }

    /** A second name for a file fails if somebody has the name; a rename would replace that file. */
    private void moveAsNew(final Path from, final Path to) throws IOException {
        try {
            Files.createLink(local(to), local(from));
        } catch (java.nio.file.FileAlreadyExistsException error) {
            throw new FileAlreadyExistsException(to + " is there already");
        } catch (FileSystemException error) { // a file system whose files have one name only
            super.renameTempFile(from, to, false);
        } finally {
            Files.deleteIfExists(local(from));
        }
    }

    private java.nio.file.Path local(final Path path) {
        return java.nio.file.Path.of(fs().makeQualified(path).toUri().getPath());
    }

    private static void makeFolder(final java.nio.file.Path folder) throws IOException {
        if (!Files.isDirectory(folder)) { // createDirectories refuses a link to a folder
            Files.createDirectories(folder);
        }
    }

    /** Throw it as methods of Scala do, which declare nothing: Spark looks for the kinds of IOException. */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> E undeclared(final IOException error) throws E {
        throw (E) error;
    }
}
