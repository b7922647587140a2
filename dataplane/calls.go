package main

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// errLargeAnswer says that an answer has more bytes than its call may take.
var errLargeAnswer = errors.New("the answer is too large")

// Calls makes calls to other servers for the process behind the proxy: one connection an address, made on first use.
type Calls struct {
	options []grpc.DialOption
	files   *Files
	mutex   sync.Mutex
	conns   map[string]*outgoing
}

// outgoing is a connection, and the files that it was made with; nil without TLS.
type outgoing struct {
	*grpc.ClientConn
	with *material
	// Calls under way, each of which has a deadline, and whether another connection has taken its place: then it is
	// closed with the last of them. Both under the mutex of Calls.
	calls      int
	isReplaced bool
}

// NewCalls makes them as the channels that do without a proxy do (statehouse/rpc/channels.py). `files`: nil without TLS.
// When they change, further calls go over new connections: servers judge callers by the certificate that they have seen.
func NewCalls(
	maxMessageBytes int, transport credentials.TransportCredentials, files *Files, more ...grpc.DialOption,
) *Calls {
	return &Calls{files: files, conns: map[string]*outgoing{}, options: append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		messages(maxMessageBytes),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: pingInterval, Timeout: pingTimeout, PermitWithoutStream: true,
		}),
		// A peer that restarts is found again within a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
	}, more...)}
}

// messages has a client pass messages on as they are.
func messages(maxBytes int) grpc.DialOption {
	return grpc.WithDefaultCallOptions(
		grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(maxBytes), grpc.MaxCallSendMsgSize(maxBytes))
}

// MakeWithin calls a method whose answer has at most so many bytes, else the error is errLargeAnswer. Others are as Make's.
func (c *Calls) MakeWithin(ctx context.Context, target, method string, request []byte, most int) ([]byte, error) {
	data, err := c.Make(ctx, target, method, request, grpc.MaxCallRecvMsgSize(most))
	// gRPC has no other mark of it. A server that can't take a request has other words.
	if failure, ok := status.FromError(err); ok && failure.Code() == codes.ResourceExhausted &&
		strings.HasPrefix(failure.Message(), "grpc: received message larger than max") {
		return nil, errLargeAnswer
	}
	return data, err
}

// Make calls a method, by its path; an error carries a gRPC status.
func (c *Calls) Make(
	ctx context.Context, target, method string, request []byte, options ...grpc.CallOption,
) ([]byte, error) {
	conn, err := c.begin(target)
	if err != nil {
		return nil, err
	}
	defer c.end(conn)
	var reply message
	err = conn.Invoke(ctx, method, &message{data: request}, &reply, options...)
	return reply.data, err
}

// Drop has later calls to an address go over another connection, and those under way end within a time.
func (c *Calls) Drop(target string, grace time.Duration) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if conn, ok := c.conns[target]; ok {
		delete(c.conns, target)
		time.AfterFunc(grace, func() { _ = conn.Close() })
	}
}

// begin returns the connection for a call, which is to end with `end`.
func (c *Calls) begin(target string) (*outgoing, error) {
	var now *material
	if c.files != nil {
		now = c.files.Now()
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	found, ok := c.conns[target]
	if !ok || found.with != now {
		// Names are resolved at each connection, by the system. In a URL the zone of an address would begin an escape.
		conn, err := grpc.NewClient("passthrough:///"+url.PathEscape(target), c.options...)
		if err != nil {
			// Other replicas may have addresses that are better.
			return nil, status.Errorf(codes.Unavailable, "the address %q can't be called: %v", target, err)
		}
		if ok {
			found.isReplaced = true
			found.closeAfterCalls()
		}
		found = &outgoing{ClientConn: conn, with: now}
		c.conns[target] = found
	}
	found.calls++
	return found, nil
}

func (c *Calls) end(conn *outgoing) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	conn.calls--
	conn.closeAfterCalls()
}

func (o *outgoing) closeAfterCalls() {
	if o.isReplaced && o.calls == 0 {
		go o.Close()
	}
}
