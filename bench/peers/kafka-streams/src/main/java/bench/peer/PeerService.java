package bench.peer;

import bench.peer.proto.BatchGetRequest;
import bench.peer.proto.BatchGetResponse;
import bench.peer.proto.GetRequest;
import bench.peer.proto.GetResponse;
import bench.peer.proto.PeerServiceGrpc;
import bench.peer.proto.ScanPage;
import bench.peer.proto.ScanRequest;
import bench.peer.proto.StatusRequest;
import bench.peer.proto.StatusResponse;
import io.grpc.stub.StreamObserver;

/** The gRPC service; each call has its own class. */
final class PeerService extends PeerServiceGrpc.PeerServiceImplBase {
    private final Gets gets;
    private final Batches batches;
    private final Scans scans;
    private final StatusReport status;

    PeerService(final Gets gets, final Batches batches, final Scans scans, final StatusReport status) {
        this.gets = gets;
        this.batches = batches;
        this.scans = scans;
        this.status = status;
    }

    @Override
    public void get(final GetRequest request, final StreamObserver<GetResponse> caller) {
        gets.get(request, caller);
    }

    @Override
    public void batchGet(final BatchGetRequest request, final StreamObserver<BatchGetResponse> caller) {
        batches.get(request, caller);
    }

    @Override
    public void scan(final ScanRequest request, final StreamObserver<ScanPage> caller) {
        scans.scan(request, caller);
    }

    @Override
    public void status(final StatusRequest request, final StreamObserver<StatusResponse> caller) {
        caller.onNext(status.now());
        caller.onCompleted();
    }
}
