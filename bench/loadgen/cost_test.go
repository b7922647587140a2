package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// With this variable the tests' program runs as something else: a server that answers as cheaply as possible, or
// loadgen. Each has its own process, so that loadgen's processor time is measured alone.
const insteadVariable = "LOADGEN_TESTS_INSTEAD"

func TestMain(m *testing.M) {
	switch os.Getenv(insteadVariable) {
	case "server":
		socket, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		fmt.Println(socket.Addr())
		acceptFrames(socket, nil, answerRight)
	case "loadgen":
		main()
	default:
		os.Exit(m.Run())
	}
}

func instead(what string, arguments ...string) *exec.Cmd {
	command := exec.Command(os.Args[0], arguments...)
	command.Env = append(os.Environ(), insteadVariable+"="+what)
	command.Stderr = os.Stderr
	return command
}

// BenchmarkCost measures how much of a core 25,000 requests a second take: go test -bench Cost -benchtime 1x -run none
func BenchmarkCost(b *testing.B) {
	server := instead("server")
	printed, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	address, err := bufio.NewReader(printed).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	for _, kind := range []string{"--concurrency=1", "--concurrency=16", "--concurrency=64", "--rate=5000", "--rate=25000"} {
		b.Run(kind, func(b *testing.B) {
			for b.Loop() {
				arguments := "--store=bench --keys=1000000 --duration-s=5 --warmup-s=1 " + kind + " --targets=" + address
				content, err := instead("loadgen", strings.Fields(arguments)...).Output()
				if err != nil {
					b.Fatal(err)
				}
				var made report
				if err := json.Unmarshal(content, &made); err != nil {
					b.Fatal(err)
				}
				if !made.Passed {
					b.Fatal(made.Requests)
				}
				b.ReportMetric(made.RequestsPerS, "requests/s")
				b.ReportMetric(made.CPUS/float64(made.Requests.Total)*25_000, "cores/25k/s")
				b.ReportMetric(float64(made.LatencyUs.OK.P50), "p50-us")
				b.ReportMetric(float64(made.LatencyUs.OK.P99), "p99-us")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
