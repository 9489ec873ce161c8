package capstan.delta;

import java.io.FileNotFoundException;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.util.functional.FutureIO;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * The files of a checkpoint of Structured Streaming on S3, and Delta's checksums of versions there.
 *
 * <p>Spark writes a file under another name and renames it. On S3 a rename is a copy, some twenty
 * requests with those that look for folders, and it does not exclude another writer. Here each file
 * is one conditional put. The names and the contents are the same.
 *
 * <p>Other file systems than S3A are left to Spark.
 */
public final class ConditionalS3CheckpointFiles implements CheckpointFileManager {
  private static final String SETTING = "spark.sql.streaming.checkpointFileManagerClass";
  // By name: without a lake on S3, its classes need not be there.
  private static final String S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem";

  private final Path folder;
  private final FileSystem fs;
  private final CheckpointFileManager others;
  // Nobody but Capstan deletes the folder, with the checkpoint as a whole.
  private volatile boolean hasFolder;
  // Spark looks for a file, and then reads it.
  private volatile FileStatus lookedAt;

  /** The files in a folder; Spark calls it by reflection. */
  public ConditionalS3CheckpointFiles(Path folder, Configuration hadoopConf) throws IOException {
    this.folder = folder;
    fs = folder.getFileSystem(hadoopConf);
    if (isS3(fs.getClass())) {
      others = null;
    } else {
      Configuration without = new Configuration(hadoopConf);
      without.unset(SETTING);
      others = CheckpointFileManager.create(folder, without);
    }
  }

  private static boolean isS3(Class<?> kind) {
    return kind != null && (kind.getName().equals(S3A) || isS3(kind.getSuperclass()));
  }

  /**
   * Begins a file, which appears as a whole when the stream is closed.
   *
   * @throws FileAlreadyExistsException when the stream is closed and there is a file, unless it may
   *     be replaced.
   */
  @Override
  public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(
      Path path, boolean overwriteIfPossible) {
    if (others != null) {
      return others.createAtomic(path, overwriteIfPossible);
    }
    try {
      return new Put(new ConditionalPut(fs, path, overwriteIfPossible));
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public FSDataInputStream open(Path path) {
    if (others != null) {
      return others.open(path);
    }
    FileStatus known = lookedAt;
    lookedAt = null;
    try {
      if (known == null || !known.getPath().equals(fs.makeQualified(path))) {
        return fs.open(path);
      }
      return FutureIO.awaitFuture(fs.openFile(path).withFileStatus(known).build());
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    if (others != null) {
      return others.list(path, filter);
    }
    try {
      return fs.listStatus(path, filter);
    } catch (FileNotFoundException gone) {
      if (hasFolder && path.equals(folder)) {
        return new FileStatus[0];
      }
      throw raised(gone);
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public void mkdirs(Path path) {
    if (others != null) {
      others.mkdirs(path);
      return;
    }
    try {
      fs.mkdirs(path);
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public boolean exists(Path path) {
    if (others != null) {
      return others.exists(path);
    }
    if (hasFolder && path.equals(folder)) {
      return true;
    }
    try {
      FileStatus found = fs.getFileStatus(path);
      if (path.equals(folder)) {
        hasFolder = true;
      }
      lookedAt = found.isFile() ? found : null;
      return true;
    } catch (FileNotFoundException absent) {
      return false;
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public void delete(Path path) {
    if (others != null) {
      others.delete(path);
      return;
    }
    try {
      fs.delete(path, true);
    } catch (FileNotFoundException absent) {
      // Somebody else has deleted it.
    } catch (IOException failure) {
      throw raised(failure);
    }
  }

  @Override
  public boolean isLocal() {
    return others != null && others.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    if (others != null) {
      return others.createCheckpointDirectory();
    }
    Path qualified = fs.makeQualified(folder);
    mkdirs(qualified);
    return qualified;
  }

  /** Scala's methods declare no exceptions, and throw any. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException raised(Throwable failure) throws E {
    throw (E) failure;
  }

  private static final class Put extends CheckpointFileManager.CancellableFSDataOutputStream {
    private final ConditionalPut put;
    private boolean ended;

    Put(ConditionalPut put) {
      super(put.stream);
      this.put = put;
    }

    @Override
    public synchronized void close() throws IOException {
      if (!ended) {
        ended = true;
        put.finish();
      }
    }

    @Override
    public synchronized void cancel() {
      if (!ended) {
        ended = true;
        put.abort();
      }
    }
  }
}
