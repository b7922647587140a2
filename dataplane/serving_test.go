package main

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// keepaliveOf returns a duration that a server was given. gRPC shows none of them, and to see the one of ten minutes at
// work takes ten minutes.
func keepaliveOf(server *grpc.Server, name string) time.Duration {
	given := reflect.ValueOf(server).Elem().FieldByName("opts").FieldByName("keepaliveParams")
	return time.Duration(given.FieldByName(name).Int())
}

func TestIdleConnectionsAreClosedWithTLSAndWithout(t *testing.T) {
	for _, certificate := range []string{"", "its.pem"} {
		server := grpc.NewServer(serving(options{certificate: certificate, maxMessageBytes: 1, maxAge: time.Hour}, NewQuotas(quotaBytes))...)
		defer server.Stop()
		if found := keepaliveOf(server, "MaxConnectionIdle"); found != 10*time.Minute {
			t.Errorf("certificate %q: idle connections are closed after %v", certificate, found)
		}
	}
}
