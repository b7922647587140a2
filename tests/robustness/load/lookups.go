package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/health" // for healthCheckConfig
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"metronome"
)

const (
	get      = "/statehouse.v1.QueryService/Get"
	batchGet = "/statehouse.v1.QueryService/BatchGet"
	// The scheme of targets with several routers.
	scheme = "routers"
	// A router that isn't ready says so, and is left out.
	policy = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}`
	// Where gRPC's rich error model keeps a status with its details.
	detailsKey = "grpc-status-details-bin"
	// A router that is back is found soon.
	firstBackoff   = 50 * time.Millisecond
	longestBackoff = 200 * time.Millisecond
	// Bytes of answers that may be under way: far more than a second's.
	window = 1 << 20
	// A router of several that is frozen is left when it doesn't answer a ping; gRPC sends none sooner.
	pingInterval = 10 * time.Second
	pingTimeout  = 2 * time.Second
	// Between two attempts, about: else all come at the same time to a router that is back.
	pause = 50 * time.Millisecond
)

// plan says what to send. A request is a key's bytes and a client's one after the other: protobuf messages put together
// so are merged.
type plan struct {
	Targets  [][]string `json:"targets"`   // host:port of each target's routers; gRPC takes one of them for each call
	Rate     float64    `json:"rate"`      // calls a second, of all clients together
	TimeoutS float64    `json:"timeout_s"` // of each call
	AttemptS float64    `json:"attempt_s"` // after so long a call is sent again; 0: each is sent once
	Store    string     `json:"store"`
	Clients  []*client  `json:"clients"` // in whose turn calls are sent
	Keys     []key      `json:"keys"`    // which each client takes in turn
}

type key struct {
	Partition uint32 `json:"partition"`
	Request   []byte `json:"request"` // of a GetRequest: store and key
}

type client struct {
	Target  int    `json:"target"`   // number of its target
	First   int    `json:"first"`    // number of its first key
	Request []byte `json:"request"`  // of a GetRequest: what it always asks for
	AtLeast bool   `json:"at_least"` // whether it also asks for positions as large as those it has seen
	Batch   int    `json:"batch"`    // keys of a call by BatchGet; 0: one, by Get

	lock sync.Mutex
	seen map[uint32]int64 // by partition
}

// outcome is what came of a call: a response, or a code other than OK.
type outcome struct {
	Client   int      `json:"client"`
	Keys     []int    `json:"keys"`
	DueAt    float64  `json:"due_at"`   // seconds of the metronome's clock; it is never sent before
	TookS    float64  `json:"took_s"`   // from then until its end
	AtLeast  []*int64 `json:"at_least"` // of each key
	Router   string   `json:"router"`   // host:port of the one that was asked last; empty: none was reached
	Response []byte   `json:"response"` // of Get or BatchGet
	Code     uint32   `json:"code"`
	Message  string   `json:"message"`
	Details  []byte   `json:"details"`
}

// send sends calls until it is stopped, and waits for their outcomes, which is no longer than their timeout.
func send(
	stopped context.Context, given plan, transport credentials.TransportCredentials, outcomes chan<- outcome,
) error {
	if len(given.Clients) == 0 || len(given.Keys) == 0 || given.Rate <= 0 {
		return errors.New("the plan has no clients, no keys or no rate")
	}
	targets, err := connect(given.Targets, transport, seconds(given.TimeoutS))
	if err != nil {
		return err
	}
	beats, err := metronome.New(given.Rate)
	if err != nil {
		return err
	}
	context.AfterFunc(stopped, beats.Stop)

	var pending sync.WaitGroup
	defer pending.Wait()
	for sent := 0; ; {
		due, err := beats.Wait()
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		for ; due > 0; due-- {
			next := given.call(sent, beats.At(sent))
			sent++
			pending.Add(1)
			go func() {
				defer pending.Done()
				next.ask(targets[next.client.Target], seconds(given.TimeoutS), seconds(given.AttemptS))
				select {
				case outcomes <- next.outcome:
				default:
					log.Fatalf("%d outcomes wait, and nobody reads them", outcomesMax)
				}
			}()
		}
	}
}

// connect begins to connect to each target.
func connect(
	targets [][]string, transport credentials.TransportCredentials, timeout time.Duration,
) ([]*grpc.ClientConn, error) {
	waits := backoff.Config{BaseDelay: firstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longestBackoff}
	connections := make([]*grpc.ClientConn, len(targets))
	for number, routers := range targets {
		options := []grpc.DialOption{
			grpc.WithTransportCredentials(transport),
			grpc.WithNoProxy(),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: waits, MinConnectTimeout: timeout}),
			// Fixed, as gRPC would else find a size out, with a ping for nearly each answer.
			grpc.WithInitialWindowSize(window),
			grpc.WithInitialConnWindowSize(window),
			// What fails is to be seen here, so nothing is tried again behind our back.
			grpc.WithDisableRetry(),
			grpc.WithDisableServiceConfig(),
		}
		if len(routers) > 1 {
			options = append(options, together(routers)...)
		}
		connection, err := grpc.Dial(address(routers), options...)
		if err != nil {
			return nil, fmt.Errorf("routers %s: %w", strings.Join(routers, ","), err)
		}
		connections[number] = connection
	}
	return connections, nil
}

// address returns what to dial for a target.
func address(routers []string) string {
	if len(routers) > 1 {
		return scheme + ":///" + routers[0]
	}
	return "passthrough:///" + strings.Join(routers, "")
}

// together returns how a target with several routers is dialled: as docs/other-languages.md has it. The resolver stands
// for a DNS name, which couldn't have ports of one machine.
func together(routers []string) []grpc.DialOption {
	var state resolver.State
	for _, router := range routers {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: router})
	}
	found := manual.NewBuilderWithScheme(scheme)
	found.InitialState(state)
	return []grpc.DialOption{
		grpc.WithResolvers(found),
		grpc.WithDefaultServiceConfig(policy),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout}),
	}
}

// call is one that is to be sent.
type call struct {
	outcome
	client  *client
	keys    []key
	method  string
	request []byte
	dueAt   int64
}

// call returns the one with this number, with what its client knows by now.
func (p *plan) call(number int, dueAt int64) *call {
	turn, turnOf := number/len(p.Clients), number%len(p.Clients)
	asking := p.Clients[turnOf]
	count := max(asking.Batch, 1)
	next := &call{outcome: outcome{Client: turnOf, DueAt: float64(dueAt) / 1e9}, client: asking, dueAt: dueAt}
	for nth := range count {
		keyNumber := (asking.First + turn*count + nth) % len(p.Keys)
		asked := p.Keys[keyNumber]
		request := slices.Concat(asked.Request, asking.Request)
		position := asking.seenOf(asked.Partition)
		if position != nil {
			request = append(request, atLeast(p.Store, asked.Partition, *position)...)
		}
		next.keys = append(next.keys, asked)
		next.Keys, next.AtLeast = append(next.Keys, keyNumber), append(next.AtLeast, position)
		if asking.Batch > 0 {
			next.method, next.request = batchGet, append(next.request, field(batchRequests, request)...)
		} else {
			next.method, next.request = get, request
		}
	}
	return next
}

// ask sends the call, again after each `attempt` if that isn't 0, and notes how it ended.
func (c *call) ask(target *grpc.ClientConn, timeout, attempt time.Duration) {
	deadline, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	failed, trailer := c.try(deadline, target, attempt)
	for attempt > 0 && isWorthAnother(failed.Code()) && hasPaused(deadline) {
		failed, trailer = c.try(deadline, target, attempt)
	}
	// Its client knows the position by the time at which it is said to have ended.
	if failed.Code() == codes.OK {
		c.client.see(c.keys, c.answers())
	}
	c.TookS = float64(metronome.Now()-c.dueAt) / 1e9
	if failed.Code() == codes.OK {
		return
	}
	c.Code, c.Message = uint32(failed.Code()), failed.Message()
	if details := trailer.Get(detailsKey); len(details) > 0 {
		c.Details = []byte(details[0])
	}
}

// try sends the call once; an attempt of 0 may take until the deadline.
func (c *call) try(
	deadline context.Context, target *grpc.ClientConn, attempt time.Duration,
) (*status.Status, metadata.MD) {
	if attempt > 0 {
		sooner, cancel := context.WithTimeout(deadline, attempt)
		defer cancel()
		deadline = sooner
	}
	var trailer metadata.MD
	var asked peer.Peer
	err := target.Invoke(
		deadline, c.method, c.request, &c.Response,
		grpc.ForceCodec(rawCodec{}), grpc.Trailer(&trailer), grpc.Peer(&asked),
	)
	if asked.Addr != nil {
		c.Router = asked.Addr.String()
	}
	return status.Convert(err), trailer
}

// isWorthAnother returns whether the same read may be sent again, as docs/other-languages.md has it.
func isWorthAnother(code codes.Code) bool {
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// hasPaused waits for a moment; it returns whether there is time left.
func hasPaused(deadline context.Context) bool {
	select {
	case <-time.After(pause/2 + rand.N(pause)):
		return true
	case <-deadline.Done():
		return false
	}
}

// seenOf returns the largest position seen of a partition; nil if there is none or the client doesn't mind.
func (c *client) seenOf(partition uint32) *int64 {
	c.lock.Lock()
	defer c.lock.Unlock()
	if position, isSeen := c.seen[partition]; isSeen {
		return &position
	}
	return nil
}

// answers returns the GetResponse of each key, empty of one that was refused.
func (c *call) answers() [][]byte {
	if c.client.Batch == 0 {
		return [][]byte{c.Response}
	}
	return answersIn(c.Response)
}

// see remembers the positions in the answers for keys, if they are the largest of their partitions and the client minds.
func (c *client) see(keys []key, answers [][]byte) {
	if !c.AtLeast {
		return
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.seen == nil {
		c.seen = map[uint32]int64{}
	}
	for nth := range min(len(keys), len(answers)) { // who reads the outcome finds out that some are missing
		if position, isKnown := positionIn(answers[nth]); isKnown {
			c.seen[keys[nth].Partition] = max(position, c.seen[keys[nth].Partition])
		}
	}
}

func seconds(value float64) time.Duration {
	return time.Duration(value * float64(time.Second))
}
