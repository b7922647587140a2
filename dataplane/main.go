// Command statehouse-proxy serves gRPC in front of a query node or a router: it speaks HTTP/2, and the Python process
// that started it answers.
//
// Lookups go to that process as frames on the socket that is standard input (link.go), everything else as gRPC to its
// Unix socket (forward.go); and it has calls to other servers made for it (calls.go). A router's proxy sends plain
// lookups to nodes on its own, by a snapshot of what the router has decided (express.go).
//
// It says where it listens, begins to accept when told to, ends gracefully when told to, and immediately when the
// process at the other end is gone.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/engine"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/orders"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/serve"
)

const (
	// As the servers that run without a proxy have it (statehouse/rpc): peers that vanish are noticed by pings.
	pingInterval = 10 * time.Second
	pingTimeout  = 5 * time.Second
	// Clients ping every 10 s at most; fewer than that between pings is not abuse.
	leastPingInterval = 5 * time.Second
	// Most calls of one connection: further ones wait at the client. Routers and nodes refuse far fewer with a reason.
	maxCalls = 4_000
	// A connection must begin as HTTP/2 within this time, and is closed after this time without a call.
	beginsWithin = 10 * time.Second
	maxIdle      = 10 * time.Minute
	// What may be on the way to us on one connection. It is taken immediately, so it takes no memory.
	connWindowBytes = 1 << 20
	// Each connection has one, also while nothing comes. A hundred small requests fit.
	readBufferBytes = 8 << 10
	// What connections take.
	ownBytes = 64 << 20
	// So much has been read of changelogs and not written yet, in addition to the cache and what is not in files.
	storesBytes = 128 << 20
	// Goroutines that take one call after the other; further calls have one each. A new one grows its stack several times.
	callTakers = 64
	// Our own metadata take some hundred bytes.
	maxHeaderBytes = 16 << 10
)

type options struct {
	listen, server   string
	sharePort        bool
	maxMessageBytes  int
	maxHeldBytes     int
	maxConnections   int
	maxOfAddress     int
	certificate, key string
	ca, callers      string
	serverName       string
	maxAge           time.Duration
	isTraced         bool
	shownStore       string
}

// quotaBytes returns what all calls may take.
func (o *options) quotaBytes() int { return max(quotaBytes, 4*o.maxMessageBytes) }

func main() {
	var given options
	flag.StringVar(&given.listen, "listen", "", "address to listen on, host:port; port 0 takes a free one")
	flag.BoolVar(&given.sharePort, "share-port", false, "other processes may listen on the port, too")
	flag.StringVar(&given.server, "server", "", "gRPC target of the server behind this proxy, a Unix socket")
	flag.IntVar(&given.maxMessageBytes, "max-message-bytes", 0, "largest gRPC message")
	flag.IntVar(&given.maxHeldBytes, "max-request-bytes-held", 0, "most bytes of large requests of all connections at once")
	flag.IntVar(&given.maxConnections, "max-connections", 0, "most connections at once")
	flag.IntVar(&given.maxOfAddress, "max-connections-per-address", 0, "most of one address; 0: as many as are left for others")
	flag.StringVar(&given.certificate, "tls-certificate", "", "file with the certificate, PEM; without one nothing is encrypted")
	flag.StringVar(&given.key, "tls-key", "", "file with its private key, PEM")
	flag.StringVar(&given.ca, "tls-ca", "", "file with the CA's certificates, PEM")
	flag.StringVar(&given.callers, "tls-callers", "none", "whether callers show certificates: none, optional or required")
	flag.StringVar(&given.serverName, "tls-server-name", "", "a name that the certificates of called servers have, in place of their hosts")
	flag.DurationVar(&given.maxAge, "max-connection-age", 0, "with TLS, when a connection is closed after its calls")
	flag.BoolVar(&given.isTraced, "traced", false, "the server makes spans of calls that carry a trace's context")
	flag.StringVar(&given.shownStore, "show-store", "", "write the checkpoint of a store that no process has open, as JSON, and end")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "statehouse-proxy is started by a query node or a router (--proxy), not by hand.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if given.shownStore != "" {
		showStore(given.shownStore)
		return
	}
	if given.maxMessageBytes < 1 || given.maxHeldBytes < 1 || given.maxConnections < 1 || given.maxOfAddress < 0 {
		log.Fatal("a flag -max-... is missing")
	}
	// The server is one thread, and more of ours would take processors from it, above all while they look for work.
	runtime.GOMAXPROCS(1)
	go boundGarbage()
	// Garbage of large messages would double what they take. Beyond this limit it is collected immediately.
	debug.SetMemoryLimit(int64(2*given.maxHeldBytes + given.quotaBytes() + ownBytes))
	log.SetFlags(0)
	log.SetPrefix("statehouse-proxy: ")
	// Ctrl-C reaches the whole process group; when to end is the server's business.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	if err := run(given); err != nil {
		log.Fatal(err)
	}
}

// showStore writes a store's checkpoint; nothing if it has none.
func showStore(path string) {
	state, err := engine.ReadClosed(path)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := os.Stdout.Write(state); err != nil {
		log.Fatal(err)
	}
}

func run(given options) error {
	conn, err := net.FileConn(os.Stdin)
	if err != nil {
		return fmt.Errorf("standard input is to be a socket, whose other end a query node or a router holds: %w", err)
	}
	var files *Files
	toOthers := insecure.NewCredentials()
	if given.certificate != "" {
		files, err = NewFiles(given.certificate, given.key, given.ca)
		toOthers = &dialing{files, given.serverName}
	}
	calls := NewCalls(given.maxMessageBytes, toOthers, files)
	link := NewLink(conn, calls)
	if err != nil {
		link.Send(cantEncrypt, 0, []byte(err.Error()))
		return link.Flush()
	}
	listener, err := listen(given)
	if err != nil {
		link.Send(cantListen, 0, []byte(err.Error()))
		return link.Flush()
	}
	upstream, err := grpc.NewClient(given.server,
		grpc.WithTransportCredentials(insecure.NewCredentials()), messages(given.maxMessageBytes))
	if err != nil {
		return err
	}
	quotas := NewQuotas(given.quotaBytes())
	shown := Plain(link)
	if files != nil {
		if shown, err = Handshakes(files, given.callers, link); err != nil {
			return err
		}
	}
	how := append(serving(given, quotas), grpc.Creds(shown))
	requests := NewRequests(given.maxMessageBytes, given.maxHeldBytes)
	allowed := permitted(link)
	express, tally := NewExpress(link, calls, given.maxMessageBytes, allowed), &Tally{}
	doors := Doors{NewDoor(placesOfLookups), NewDoor(placesOfOthers)}
	forward := link.Liveness.Guarded(Forward(upstream, requests, doors.others))
	fetches := NewFetches(toOthers, files)
	held := orders.New(func(report *controlv1.EngineReport) { link.Send(storeReport, 0, serialized(report)) }, fetches.Read)
	forward = Giving(upstream, requests, held, given.maxMessageBytes, forward)
	link.OnOrder = carried(held, link)
	served := ofHeld(held, link, given.maxMessageBytes, allowed)
	all := Handle(link, served, express, requests, doors, tally, given.isTraced, forward)
	refused := func() { tally.Ended(controlv1.ProxyWay_PROXY_WAY_REFUSED, errTooMuch) }
	server := grpc.NewServer(append(how, grpc.UnknownServiceHandler(quotas.Handle(all, refused)))...)
	bounded := NewBounded(listener, given.maxConnections, given.maxOfAddress, quotas)
	standing := &Standing{tally, link, quotas, express, served, held, doors.lookups, doors.others, bounded}
	ended := make(chan error, 2)
	link.OnServe = func() {
		go standing.Tell()
		go func() {
			// A proxy that listens to nobody would only look alive; the process behind it starts none in its place, but ends.
			if err := server.Serve(bounded); err != nil {
				ended <- fmt.Errorf("no calls are taken any more: %w", err)
			}
		}()
	}
	stopped := make(chan struct{})
	link.OnStop = func() {
		go func() {
			server.GracefulStop()
			close(stopped)
		}()
	}
	link.Send(listening, uint64(listener.Addr().(*net.TCPAddr).Port), []byte{linkVersion})
	go func() { ended <- link.Run() }()
	select {
	case err = <-ended:
		// Nothing is answered without the server. All connections end with this process, and its port is free for the next
		// one. To stop gRPC's server would wait for connections over which nothing has come yet.
		return err
	case <-stopped:
		if !held.HasBegun() {
			return link.Flush()
		}
		link.Send(callsEnded, 0, nil)
		<-ended // the server closes its stores, and then the link
		held.Close()
		return nil
	}
}

// serving returns how calls are taken.
func serving(given options, quotas *Quotas) []grpc.ServerOption {
	ends := keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout, MaxConnectionIdle: maxIdle}
	if given.certificate != "" {
		// A caller that connects again is checked again. Calls under way finish, and so there is no grace.
		ends.MaxConnectionAge = given.maxAge
	}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.NumStreamWorkers(callTakers),
		grpc.InTapHandle(quotas.Tap),
		// What a call may send before anybody reads it. gRPC would raise this on fast connections, up to 16 MiB.
		grpc.StaticStreamWindowSize(smallBytes),
		grpc.StaticConnWindowSize(connWindowBytes),
		grpc.ReadBufferSize(readBufferBytes),
		grpc.SharedWriteBuffer(true),
		grpc.MaxSendMsgSize(given.maxMessageBytes),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.ConnectionTimeout(beginsWithin),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.KeepaliveParams(ends),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPingInterval, PermitWithoutStream: true}),
	}
}

func listen(given options) (net.Listener, error) {
	config := net.ListenConfig{}
	if given.sharePort {
		config.Control = func(_, _ string, raw syscall.RawConn) error {
			var err error
			if outer := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}); outer != nil {
				return outer
			}
			return err
		}
	}
	return config.Listen(context.Background(), "tcp", given.listen)
}

// carried returns what has orders about stores carried out.
func carried(held *orders.Orders, link *Link) func(uint64, []byte) {
	room := &openRoom{kept: map[uint64]uint64{}}
	return func(number uint64, content []byte) {
		var order controlv1.EngineOrder
		if err := proto.Unmarshal(content, &order); err != nil {
			log.Fatalf("an order can't be read: %v", err)
		}
		if start := order.GetStart(); start != nil {
			haveRoom(start)
		}
		if open := order.GetOpen(); open != nil {
			room.opening(open)
		}
		if closing := order.GetClose(); closing != nil {
			room.closing(closing.Store)
		}
		answer := held.Carry(&order)
		if open := order.GetOpen(); open != nil && answer.Fault != nil {
			room.closing(open.Store)
		}
		link.Send(orderEnded, number, serialized(answer))
	}
}

// permitted returns what judged callers may read, as the link says.
func permitted(link *Link) *permits.Permits {
	p := &permits.Permits{}
	link.OnPermit, link.OnWithdraw, link.OnGone = p.Take, p.Withdraw, p.Forget
	return p
}

// ofHeld returns what answers lookups from the stores that are held, as far as the link says.
func ofHeld(held *orders.Orders, link *Link, maxMessageBytes int, allowed *permits.Permits) *serve.Served {
	replicaOf := func(number uint64) (serve.Replica, bool) {
		found := held.Replica(number)
		return found, found != nil
	}
	served := serve.New(replicaOf, maxMessageBytes, allowed, func(sums []byte) { link.Send(servingSums, 0, sums) })
	link.OnServing, link.OnHolds = served.Decide, served.Hold
	link.OnFacts = func(data []byte) error {
		var told controlv1.ServingFacts
		if err := proto.Unmarshal(data, &told); err != nil {
			return err
		}
		held.Know(&told)
		served.Report(told.Reports)
		return nil
	}
	return served
}

// haveRoom takes all processors, and as much memory as stores need.
func haveRoom(start *controlv1.EngineStart) {
	runtime.GOMAXPROCS(runtime.NumCPU())
	more(int64(start.BlockCacheBytes+2*start.WriteBufferBytes) + storesBytes)
}

// openRoom has counted with the memory what stores take beside what they share: the latest records of changelogs, and what
// is kept in memory. The numbers are the most there have been.
type openRoom struct {
	mutex  sync.Mutex
	stores uint32
	kept   map[uint64]uint64 // what stores in memory may take
	most   uint64
}

func (r *openRoom) opening(open *controlv1.EngineOpen) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if open.Stores > r.stores {
		more(int64(open.Stores-r.stores) * int64(open.TailBytes))
		r.stores = open.Stores
	}
	if open.MemoryBytes == 0 {
		return
	}
	r.kept[open.Store] = 2 * open.MemoryBytes // while files are merged
	all := uint64(0)
	for _, each := range r.kept {
		all += each
	}
	if all > r.most {
		more(int64(all - r.most))
		r.most = all
	}
}

func (r *openRoom) closing(store uint64) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.kept, store)
}

// more raises the limit of the memory.
func more(bytes int64) { debug.SetMemoryLimit(debug.SetMemoryLimit(-1) + bytes) }

func serialized(message proto.Message) []byte {
	data, err := proto.Marshal(message)
	if err != nil {
		log.Fatalf("what can't be serialized: %v", err)
	}
	return data
}
