package capstan.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;

/**
 * A Delta log store for S3 that lets one of several concurrent commits succeed.
 *
 * <p>A commit is one conditional put ({@code If-None-Match: *}): S3 rejects it when the object
 * exists. Each put carries a token in the object's metadata. When a put fails, the store compares
 * the token of the object that is there with its own, because S3 may have stored an object whose
 * response was lost, and then rejects the retry of the same put.
 *
 * <p>The options are mandatory. A Hadoop that does not know them fails, and nothing is written.
 */
public final class ConditionalS3LogStore extends HadoopFileSystemLogStore {
  private static final String CONDITION = "fs.option.create.conditional.overwrite";
  private static final String TOKEN = "capstan-write";

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
    FileSystem fs = path.getFileSystem(hadoopConf);
    String token = UUID.randomUUID().toString();
    try {
      put(fs, path, actions, overwrite, token);
    } catch (IOException failure) {
      if (overwrite) {
        throw failure;
      }
      String stored = tokenOf(fs, path, failure);
      if (stored == null) {
        throw failure;
      }
      if (!stored.equals(token)) {
        FileAlreadyExistsException lost = new FileAlreadyExistsException(path.toString());
        lost.initCause(failure);
        throw lost;
      }
      // The object is ours; only the response was lost.
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

  private static void put(
      FileSystem fs, Path path, Iterator<String> actions, boolean overwrite, String token)
      throws IOException {
    var builder = fs.createFile(path).overwrite(overwrite).recursive();
    builder.must("fs.s3a.create.header." + TOKEN, token);
    if (!overwrite) {
      builder.must(CONDITION, true);
    }
    FSDataOutputStream stream = builder.build();
    try {
      while (actions.hasNext()) {
        stream.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
      }
    } catch (IOException | RuntimeException | Error failure) {
      // Closing would store an entry without its last actions.
      stream.abort();
      throw failure;
    }
    stream.close();
  }

  /** The token of the object at a path: empty for one without a token, null when there is none. */
  private static String tokenOf(FileSystem fs, Path path, IOException failure) throws IOException {
    try {
      byte[] value = fs.getXAttrs(path).get("header." + TOKEN);
      return value == null ? "" : new String(value, StandardCharsets.UTF_8);
    } catch (FileNotFoundException absent) {
      return null;
    } catch (IOException unknown) {
      failure.addSuppressed(unknown);
      throw failure;
    }
  }

  /** S3 shows an object only when it is complete. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
    return false;
  }
}
