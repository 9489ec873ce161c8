package capstan.delta;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.impl.StoreContext;
import org.apache.hadoop.util.functional.CallableRaisingIOE;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Response;
import software.amazon.awssdk.services.s3.model.S3Object;

/**
 * A listing of a Delta log that S3 begins at an entry ({@code start-after}).
 *
 * <p>Hadoop lists a folder as a whole. Delta asks for the entries since its last checkpoint, of a
 * log that has all entries of a month.
 */
final class S3LogListing {
  private static final int PAGE = 1000;

  private S3LogListing() {}

  /** The entries from a path on, in the order of their names; none when there is no such log. */
  static List<FileStatus> from(S3AFileSystem fs, Path path) throws IOException {
    StoreContext store = fs.createStoreContext();
    S3Client client = fs.getS3AInternals().getAmazonS3Client("list a Delta log");
    Path log = path.getParent();
    String folder = store.pathToKey(log) + "/";
    String first = store.pathToKey(path);
    // S3 leaves out the key that it starts after, so the last character is cut off.
    var request =
        store
            .getRequestFactory()
            .newListObjectsV2RequestBuilder(folder, "/", PAGE)
            .startAfter(first.substring(0, first.length() - 1));
    List<FileStatus> entries = new ArrayList<>();
    ListObjectsV2Response page;
    do {
      ListObjectsV2Request next = request.build();
      CallableRaisingIOE<ListObjectsV2Response> list = () -> client.listObjectsV2(next);
      page = store.getInvoker().retry("list", folder, true, list);
      for (S3Object object : page.contents()) {
        if (object.key().compareTo(first) >= 0) {
          entries.add(entry(log, object));
        }
      }
      request.continuationToken(page.nextContinuationToken());
    } while (page.isTruncated());
    return entries;
  }

  private static FileStatus entry(Path log, S3Object object) {
    String name = object.key().substring(object.key().lastIndexOf('/') + 1);
    long modified = object.lastModified().toEpochMilli();
    return new FileStatus(object.size(), false, 1, 0, modified, new Path(log, name));
  }
}
