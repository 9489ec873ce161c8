package capstan.delta;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * One put of an object to S3, under the condition that there is none ({@code If-None-Match: *}).
 *
 * <p>It carries a token in the object's metadata. When the put fails, the token of the object that
 * is there is compared with its own, because S3 may have stored an object whose response was lost,
 * and then rejects the retry of the same put.
 *
 * <p>The options are mandatory. A Hadoop that does not know them fails, and nothing is written.
 */
final class ConditionalPut {
  private static final String CONDITION = "fs.option.create.conditional.overwrite";
  private static final String TOKEN = "capstan-write";

  private final FileSystem fs;
  private final Path path;
  private final boolean overwrite;
  private final String token = UUID.randomUUID().toString();
  final FSDataOutputStream stream;

  /** Begins a put, which replaces what is there only with {@code overwrite}. */
  ConditionalPut(FileSystem fs, Path path, boolean overwrite) throws IOException {
    this.fs = fs;
    this.path = path;
    this.overwrite = overwrite;
    var builder = fs.createFile(path).overwrite(overwrite).recursive();
    builder.must("fs.s3a.create.header." + TOKEN, token);
    if (!overwrite) {
      builder.must(CONDITION, true);
    }
    stream = builder.build();
  }

  /** Drops what was written to the stream; nothing is stored. */
  void abort() {
    stream.abort();
  }

  /**
   * Stores what was written to the stream.
   *
   * @throws FileAlreadyExistsException when the object exists, and another writer wrote it.
   * @throws IOException when it could not be written, or nobody can tell whether it was.
   */
  void finish() throws IOException {
    try {
      stream.close();
    } catch (IOException failure) {
      String stored = overwrite ? null : tokenOf(failure);
      if (stored == null) {
        throw failure;
      }
      if (!stored.equals(token)) {
        var lost = new FileAlreadyExistsException(path.toString());
        lost.initCause(failure);
        throw lost;
      }
      // The object is ours; only the response was lost.
    }
  }

  /** The token of the object: empty for one without a token, null when there is none. */
  private String tokenOf(IOException failure) throws IOException {
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
}
