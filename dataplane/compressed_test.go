package main

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
)

func packed(t *testing.T, data []byte, open func(io.Writer) io.WriteCloser) []byte {
	t.Helper()
	var found bytes.Buffer
	writer := open(&found)
	if _, err := writer.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return found.Bytes()
}

func gzipped(to io.Writer) io.WriteCloser  { return gzip.NewWriter(to) }
func deflated(to io.Writer) io.WriteCloser { return zlib.NewWriter(to) }
func bare(to io.Writer) io.WriteCloser {
	made, _ := flate.NewWriter(to, flate.DefaultCompression)
	return made
}

// byHand makes a call by hand and returns its code, the length that it is answered with, and the answer's grpc-encoding.
// `encoding`: its header, absent if empty.
func byHand(t *testing.T, at, encoding string, flag byte, data []byte) (codes.Code, int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	conn.Write([]byte(http2.ClientPreface))
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/a/B"}, {":authority", at},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	}
	if encoding != "" {
		fields = append(fields, [2]string{"grpc-encoding", encoding})
	}
	for _, each := range fields {
		encoder.WriteField(hpack.HeaderField{Name: each[0], Value: each[1]})
	}
	framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	message := append(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(data))), data...)
	for each := range slices.Chunk(message, 16<<10) { // all of them are within what may be sent ahead
		framer.WriteData(1, false, each)
	}
	framer.WriteData(1, true, nil)
	size, answer := -1, ""
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch read := frame.(type) {
		case *http2.DataFrame:
			if len(read.Data()) == 9 {
				size = int(binary.BigEndian.Uint32(read.Data()[5:]))
			}
		case *http2.MetaHeadersFrame:
			for _, each := range read.Fields {
				switch each.Name {
				case "grpc-encoding":
					answer = each.Value
				case "grpc-status":
					code, _ := strconv.Atoi(each.Value)
					return codes.Code(code), size, answer
				}
			}
		}
	}
}

// What grpcio answers as well, but to flags that gRPC doesn't know (it takes the message for an empty one), and to unknown
// encodings (INTERNAL; gRPC's specification has UNIMPLEMENTED).
func TestCompressedMessagesAreTakenAsGRPCHasIt(t *testing.T) {
	requests := NewRequests(largest, 2*largest)
	at := sizes(t, requests)
	hello := []byte("hello, hello")
	inGzip, inDeflate := packed(t, hello, gzipped), packed(t, hello, deflated)
	wrongSum := slices.Clone(inGzip)
	wrongSum[len(wrongSum)-6] ^= 1
	for _, each := range []struct {
		what, encoding string
		flag           byte
		data           []byte
		code           codes.Code
		size           int
	}{
		{"plain", "", 0, hello, codes.OK, len(hello)},
		{"identity", "identity", 0, hello, codes.OK, len(hello)},
		{"gzip", "gzip", 1, inGzip, codes.OK, len(hello)},
		{"deflate", "deflate", 1, inDeflate, codes.OK, len(hello)},
		{"gzip, this one is not", "gzip", 0, hello, codes.OK, len(hello)},
		{"nothing", "gzip", 1, nil, codes.OK, 0},
		{"of nothing", "gzip", 1, packed(t, nil, gzipped), codes.OK, 0},
		{"much", "gzip", 1, packed(t, make([]byte, largest), gzipped), codes.OK, largest},
		{"one too many", "gzip", 1, packed(t, make([]byte, largest+1), gzipped), codes.ResourceExhausted, -1},
		{"a bomb of gzip", "gzip", 1, packed(t, make([]byte, 30*largest), gzipped), codes.ResourceExhausted, -1},
		{"a bomb of deflate", "deflate", 1, packed(t, make([]byte, 30*largest), deflated), codes.ResourceExhausted, -1},
		{"a flag without a header", "", 1, inGzip, codes.Internal, -1},
		{"a flag with identity", "identity", 1, inGzip, codes.Internal, -1},
		{"unknown flags", "", 2, hello, codes.Internal, -1},
		{"an unknown flag beside", "gzip", 3, inGzip, codes.Internal, -1},
		{"cut", "gzip", 1, inGzip[:len(inGzip)-9], codes.Internal, -1},
		{"a wrong sum", "gzip", 1, wrongSum, codes.Internal, -1},
		{"more behind", "gzip", 1, append(slices.Clone(inGzip), "more"...), codes.Internal, -1},
		{"more behind", "deflate", 1, append(slices.Clone(inDeflate), "more"...), codes.Internal, -1},
		{"twice", "gzip", 1, append(slices.Clone(inGzip), inGzip...), codes.Internal, -1},
		{"the other one", "gzip", 1, inDeflate, codes.Internal, -1},
		{"the other one", "deflate", 1, inGzip, codes.Internal, -1},
		{"without zlib's header", "deflate", 1, packed(t, hello, bare), codes.Internal, -1},
		{"unknown", "snappy", 1, hello, codes.Unimplemented, -1},
		{"unknown, not used", "snappy", 0, hello, codes.Unimplemented, -1},
		{"in capitals", "GZIP", 1, inGzip, codes.Unimplemented, -1},
		{"two", "gzip,identity", 1, inGzip, codes.Unimplemented, -1},
	} {
		code, size, answer := byHand(t, at, each.encoding, each.flag, each.data)
		if code != each.code || size != each.size {
			t.Errorf("%s, %q: %v, %d bytes instead of %v, %d", each.what, each.encoding, code, size, each.code, each.size)
		}
		if answer != "" && answer != "identity" {
			t.Errorf("%s: the answer is in %q", each.what, answer)
		}
	}
	waitFor(t, "the room", func() bool { return roomLeft(requests, 2*largest) })
}

func TestCompressedMessagesOfAllSizesArriveWholeManyAtOnce(t *testing.T) {
	requests := NewRequests(largest, largest)
	at := sizes(t, requests)
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})),
		grpc.WithCompressor(grpc.NewGZIPCompressor())) // ours only reads
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	noise := make([]byte, largest)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	ctx, end := context.WithTimeout(context.Background(), 20*time.Second)
	defer end()
	var calls sync.WaitGroup
	for _, size := range []int{1, smallBytes - 100, smallBytes, smallBytes + 1, largest / 2, largest - 1000} {
		for what, data := range map[string][]byte{"zeros": make([]byte, size), "noise": noise[:size]} {
			for range 3 {
				calls.Add(1)
				go func() {
					defer calls.Done()
					var reply message
					err := conn.Invoke(ctx, "/a/B", &message{data: data}, &reply)
					if err != nil || binary.BigEndian.Uint32(reply.data) != uint32(size) {
						t.Error(what, size, err, reply.data)
					}
				}()
			}
		}
	}
	calls.Wait()
	waitFor(t, "the room", func() bool { return roomLeft(requests, largest) })
}

func TestABombTakesNoMoreThanALargeRequest(t *testing.T) {
	bomb := packed(t, make([]byte, 64*largest), gzipped)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := compressionOf("gzip").inflated(bomb, smallBytes, largest)
	runtime.ReadMemStats(&after)
	// The count has what other goroutines and the race detector take, too; the bomb would take 64 times as much.
	if err != errLargeInflated || after.TotalAlloc-before.TotalAlloc > largest {
		t.Fatal(err, after.TotalAlloc-before.TotalAlloc)
	}
}
