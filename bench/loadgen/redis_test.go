package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// values is a Redis with the test's keys: it answers GET, MGET and PING.
type values struct {
	store
	// Replaces the answer to a request that isn't a PING; nil: none.
	answer func(right string) string
	// Follows the answer; false ends the connection.
	goesOn func() bool
}

// serveValues starts it; it ends with the test.
func serveValues(t *testing.T, held *values) (address string) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go func() {
		for {
			connection, err := socket.Accept()
			if err != nil {
				return
			}
			go held.serveOn(connection)
		}
	}()
	return socket.Addr().String()
}

func (v *values) serveOn(socket net.Conn) {
	defer socket.Close()
	input := bufio.NewReader(socket)
	for {
		request, err := readRequest(input)
		if err != nil {
			return
		}
		said := v.right(request)
		if v.answer != nil && request[0] != "PING" {
			said = v.answer(said)
		}
		if _, err := io.WriteString(socket, said); err != nil {
			return
		}
		if v.goesOn != nil && request[0] != "PING" && !v.goesOn() {
			return
		}
	}
}

func readRequest(input *bufio.Reader) (request []string, err error) {
	var count int
	if _, err := fmt.Fscanf(input, "*%d\r\n", &count); err != nil {
		return nil, err
	}
	for range count {
		var length int
		if _, err := fmt.Fscanf(input, "$%d\r\n", &length); err != nil {
			return nil, err
		}
		text := make([]byte, length+len("\r\n"))
		if _, err := io.ReadFull(input, text); err != nil {
			return nil, err
		}
		request = append(request, string(text[:length]))
	}
	return request, nil
}

func (v *values) right(request []string) string {
	if request[0] == "PING" {
		return "+PONG\r\n"
	}
	var answer strings.Builder
	if request[0] == "MGET" {
		answer.WriteString("*" + strconv.Itoa(len(request)-1) + "\r\n")
	}
	for _, text := range request[1:] {
		key, _ := keyNumber([]byte(text))
		if value, found := v.get(key); found {
			answer.WriteString("$" + strconv.Itoa(len(value)) + "\r\n" + string(value) + "\r\n")
		} else {
			answer.WriteString("$-1\r\n")
		}
	}
	return answer.String()
}

// ofRedis returns options for a run of a fraction of a second.
func ofRedis(method, address string) options {
	o := short(method, address)
	o.Kind, o.Store, o.Connections = kindRedis, "", 2
	return o
}

func TestAnHonestRedisPasses(t *testing.T) {
	t.Parallel()
	address := serveValues(t, &values{store: store{keys: testKeys}})
	for method, each := range map[string]int{methodGet: 1, methodBatchGet: 100} {
		made := runLoad(t, ofRedis(method, address))
		requirePassed(t, made)
		if made.Lookups.OK != each*made.Requests.OK || made.Connections.Opened != 2 {
			t.Fatalf("%v %v %v", made.Lookups, made.Requests, made.Connections)
		}
	}
}

func TestWrongAndMissingValuesOfRedisAreCaught(t *testing.T) {
	t.Parallel()
	for as, spoil := range map[outcome]func(uint32, []byte) ([]byte, bool){
		wrong:   func(key uint32, value []byte) ([]byte, bool) { return appendValue(nil, key/5*5, 0), true },
		missing: func(key uint32, value []byte) ([]byte, bool) { return value, key%5 != 0 },
	} {
		address := serveValues(t, &values{store: store{keys: testKeys, spoil: spoil}})
		for _, method := range []string{methodGet, methodBatchGet} {
			made := runLoad(t, ofRedis(method, address))
			if made.Passed || made.count(t, as) == 0 || made.Lookups.OK == 0 || made.Lookups.ByOutcome[as.String()] == 0 {
				t.Fatalf("%s: %v %v", method, made.Requests, made.Lookups)
			}
		}
	}
}

func TestWhatARedisMaySay(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]struct {
		answer func(string) string
		as     outcome
	}{
		"it loads":                {func(string) string { return "-LOADING Redis is loading\r\n" }, codeUnknown},
		"another kind of answer":  {func(string) string { return ":7\r\n" }, connectionLost},
		"a line for a value":      {func(string) string { return "+OK\r\n" }, wrong},
		"several for one":         {func(right string) string { return "*1\r\n" + right }, wrong},
		"an answer without a key": {func(string) string { return "*0\r\n" }, wrong},
		"two answers":             {func(right string) string { return right + right }, wrong},
		"a length too much":       {func(string) string { return "$99999999999\r\n" }, connectionLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := ofRedis(methodGet, serveValues(t, &values{store: store{keys: testKeys}, answer: each.answer}))
			o.Connections, o.Concurrency = 1, 1
			made := runLoad(t, o)
			if made.Requests.Total == 0 || made.count(t, each.as) == 0 {
				t.Fatalf("%v %v", made.Requests, made.Errors)
			}
		})
	}
}

// Requests on their way are lost with their connection, and later ones go to the next.
func TestLostConnectionsToRedisAreReplaced(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	address := serveValues(t, &values{store: store{keys: testKeys}, goesOn: func() bool { return asked.Add(1)%50 != 0 }})
	o := ofRedis(methodGet, address)
	o.DurationS = 0.5
	made := runLoad(t, o)
	if made.count(t, connectionLost) == 0 || made.hasWrong() || made.Connections.Opened < 3 || made.Requests.OK < 50 {
		t.Fatalf("%v %v", made.Requests, made.Connections)
	}
}

// The first answer after a timeout belongs to the request that timed out, and not to the next one.
func TestLateAnswersOfRedisAreDropped(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	stalls := func(right string) string {
		if asked.Add(1) == 5 {
			time.Sleep(200 * time.Millisecond)
		}
		return right
	}
	o := ofRedis(methodGet, serveValues(t, &values{store: store{keys: testKeys}, answer: stalls}))
	o.TimeoutMs, o.Connections, o.DurationS = 50, 1, 0.6
	made := runLoad(t, o)
	if made.count(t, timedOut) == 0 || made.hasWrong() || made.Requests.OK == 0 || made.Connections.Lost != 0 {
		t.Fatalf("%v %v %v", made.Requests, made.Connections, made.Errors)
	}
}
