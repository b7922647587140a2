// Command readkey reads a key of a store through a router, and then again, no older than the first time.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	statehouse "readkey/gen/statehouse/v1"
)

const (
	// It travels with the call, and the router answers a little before it is over.
	timeout = 5 * time.Second
	// Before a read is tried again that nobody could answer.
	pause = time.Second
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(arguments []string) error {
	if len(arguments) != 4 {
		return errors.New("usage: readkey ROUTER STORE KEY MAX_STALENESS_MS")
	}
	maxStalenessMs, err := strconv.ParseInt(arguments[3], 10, 64)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(arguments[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	service := statehouse.NewQueryServiceClient(connection)
	if err := readTwice(service, arguments[1], arguments[2], maxStalenessMs); err != nil {
		return explained(err)
	}
	return nil
}

func readTwice(service statehouse.QueryServiceClient, store, key string, maxStalenessMs int64) error {
	freshness := &statehouse.Freshness{MaxStalenessMs: &maxStalenessMs}
	first, err := read(service, store, key, freshness)
	if err != nil {
		return err
	}
	// The replica that answers next has reached this position, or waits for it: reads don't go back in time.
	freshness.AtLeast = &statehouse.Positions{Positions: []*statehouse.StorePosition{{
		Store:     store,
		Partition: first.GetReplica().GetPartition(),
		Position:  first.GetReplica().GetPosition(),
	}}}
	_, err = read(service, store, key, freshness)
	return err
}

// read reads a key once and prints the answer and who gave it.
func read(
	service statehouse.QueryServiceClient, store, key string, freshness *statehouse.Freshness,
) (*statehouse.GetResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	answer, err := service.Get(ctx, &statehouse.GetRequest{
		Store:     store,
		Key:       &statehouse.Key{Key: &statehouse.Key_Text{Text: key}},
		Freshness: freshness,
	})
	if err != nil {
		return nil, err
	}
	value := "not there"
	if answer.GetFound() {
		value = protojson.MarshalOptions{}.Format(answer.GetValue())
	}
	replica := answer.GetReplica()
	fmt.Printf("%s: %s\n", key, value)
	fmt.Printf("  from %s as %v, at position %d, %d ms stale\n",
		replica.GetHost().GetInstanceId(), replica.GetRole(), replica.GetPosition(), replica.GetStalenessMs())
	return answer, nil
}

// explained says why a read failed, why each replica could not answer it, and whether to send it again.
func explained(err error) error {
	failure := status.Convert(err)
	// Without a reason it is no router's failure but the connection's, and the code says enough.
	reason, candidates, delay := failure.Code().String(), "", time.Duration(0)
	if failure.Code() == codes.Unavailable || failure.Code() == codes.DeadlineExceeded {
		delay = pause
	}
	for _, detail := range failure.Details() {
		switch detail := detail.(type) {
		case *statehouse.LookupError:
			reason = detail.GetReason().String()
			for _, candidate := range detail.GetCandidates() {
				candidates += fmt.Sprintf("\n  %s: %v", candidate.GetHost().GetInstanceId(), candidate.GetReason())
			}
		case *errdetails.RetryInfo:
			delay = detail.GetRetryDelay().AsDuration()
		}
	}
	advice := "would fail again"
	if delay > 0 {
		advice = fmt.Sprintf("may be sent again after %d ms", delay.Milliseconds())
	}
	return fmt.Errorf("%s: %s%s\n%s", reason, failure.Message(), candidates, advice)
}
