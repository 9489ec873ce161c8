package capstan.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;

/**
 * A Delta log store for S3 that lets one of several concurrent commits succeed: a commit is one
 * conditional put.
 */
public final class ConditionalS3LogStore extends HadoopFileSystemLogStore {
  public ConditionalS3LogStore(Configuration hadoopConf) {
    super(hadoopConf);
  }

  /**
   * Writes a log entry.
   *
   * @throws FileAlreadyExistsException when the entry exists, and another writer wrote it.
   * @throws IOException when the entry could not be written, or nobody can tell whether it was.
   */
  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
      throws IOException {
    try {
      var put = new ConditionalPut(path.getFileSystem(hadoopConf), path, overwrite);
      try {
        while (actions.hasNext()) {
          put.stream.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
        }
      } catch (IOException | RuntimeException | Error failure) {
        // Closing would store an entry without its last actions.
        put.abort();
        throw failure;
      }
      put.finish();
    } catch (org.apache.hadoop.fs.FileAlreadyExistsException lost) {
      // Delta knows Java's exception alone.
      var known = new FileAlreadyExistsException(path.toString());
      known.initCause(lost);
      throw known;
    }
  }

  /**
   * Lists the entries of a log from a path on, in the order of their names.
   *
   * @throws FileNotFoundException when there is no log.
   */
  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration hadoopConf) throws IOException {
    FileSystem fs = path.getFileSystem(hadoopConf);
    if (!(fs instanceof S3AFileSystem)) {
      return super.listFrom(path, hadoopConf);
    }
    List<FileStatus> entries = S3LogListing.from((S3AFileSystem) fs, path);
    if (entries.isEmpty() && !fs.exists(path.getParent())) {
      throw new FileNotFoundException("No such log: " + path.getParent());
    }
    return entries.iterator();
  }

  /** S3 shows an object only when it is complete. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
    return false;
  }
}
