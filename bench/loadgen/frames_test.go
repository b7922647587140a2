package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frames is a server's side of an HTTP/2 connection: it answers as cheaply as possible, and does things that gRPC's own
// servers do seldom or never.
type frames struct {
	*http2.Framer
	input   *bufio.Reader
	output  *bufio.Writer
	encoder *hpack.Encoder
	decoder *hpack.Decoder
	block   bytes.Buffer
	// The received bytes of each request whose headers have come.
	requests map[uint32][]byte
}

// answering answers a request of a stream.
type answering func(f *frames, id uint32, request []byte)

// serveFrames starts a server that ends with the test, and returns its address.
func serveFrames(t *testing.T, settings []http2.Setting, answer answering) string {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go acceptFrames(socket, settings, answer)
	return socket.Addr().String()
}

func acceptFrames(socket net.Listener, settings []http2.Setting, answer answering) {
	for {
		connection, err := socket.Accept()
		if err != nil {
			return
		}
		go serveFramesOn(connection, settings, answer)
	}
}

func serveFramesOn(socket net.Conn, settings []http2.Setting, answer answering) {
	defer socket.Close()
	f := &frames{
		input: bufio.NewReaderSize(socket, readBuffer), output: bufio.NewWriterSize(socket, readBuffer),
		decoder: hpack.NewDecoder(defaultTableBytes, func(hpack.HeaderField) {}), requests: map[uint32][]byte{},
	}
	f.Framer = http2.NewFramer(f.output, f.input)
	f.SetReuseFrames()
	f.encoder = hpack.NewEncoder(&f.block)
	for _, setting := range settings {
		if setting.ID == http2.SettingHeaderTableSize {
			f.decoder.SetMaxDynamicTableSize(setting.Val)
			f.decoder.SetAllowedMaxDynamicTableSize(setting.Val)
		}
	}
	if _, err := io.ReadFull(f.input, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f.WriteSettings(settings...)
	f.WriteWindowUpdate(0, 1<<30)
	for f.take(answer) == nil {
		// Requests that came together are answered together.
		if f.input.Buffered() == 0 && f.output.Flush() != nil {
			return
		}
	}
}

func (f *frames) take(answer answering) error {
	frame, err := f.ReadFrame()
	if err != nil {
		return err
	}
	switch frame := frame.(type) {
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return f.WriteSettingsAck()
		}
	case *http2.HeadersFrame:
		if _, err := f.decoder.Write(frame.HeaderBlockFragment()); err != nil {
			return err
		}
		return f.decoder.Close()
	case *http2.DataFrame:
		id := frame.StreamID
		message := frame.Data()
		if !frame.StreamEnded() || len(f.requests[id]) > 0 {
			f.requests[id] = append(f.requests[id], message...)
			message = f.requests[id]
		}
		if frame.StreamEnded() {
			delete(f.requests, id)
			answer(f, id, message)
			return nil
		}
		return f.WriteWindowUpdate(id, frame.Length)
	}
	return nil
}

func (f *frames) encode(fields ...string) []byte {
	f.block.Reset()
	for number := 0; number < len(fields); number += 2 {
		f.encoder.WriteField(hpack.HeaderField{Name: fields[number], Value: fields[number+1]})
	}
	return f.block.Bytes()
}

// begin and end write the headers before and after an answer.
func (f *frames) begin(id uint32) {
	block := f.encode(":status", "200", "content-type", "application/grpc")
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
}

func (f *frames) end(id uint32) {
	block := f.encode("grpc-status", "0")
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: true})
}

// rightAnswer answers a Get of our service.
func rightAnswer(request []byte) []byte {
	at := bytes.LastIndexByte(request, 'k')
	number, _ := keyNumber(request[at:][:keyLength])
	var value [valueLength]byte
	appendValue(value[:0], number, 0)
	answer := make([]byte, prefixLength, prefixLength+valueLength+8)
	answer = appendNumber(answer, 1, 1)
	answer = append(answer, 2<<3|2, valueLength+2, 2<<3|2, valueLength)
	return frameMessage(append(answer, value[:]...))
}

func answerRight(f *frames, id uint32, request []byte) {
	f.begin(id)
	f.WriteData(id, false, rightAnswer(request))
	f.end(id)
}

func TestWhatServersMayDo(t *testing.T) {
	t.Parallel()
	small := []http2.Setting{
		{ID: http2.SettingHeaderTableSize, Val: 0}, {ID: http2.SettingInitialWindowSize, Val: 10},
	}
	for name, each := range map[string]struct {
		settings []http2.Setting
		answer   answering
		as       outcome
	}{
		"plain": {nil, answerRight, ok},
		"an answer in pieces, a ping and an unknown frame between them": {
			nil, func(f *frames, id uint32, request []byte) {
				block := f.encode(":status", "200", "x-long", strings.Repeat("long", 5_000))
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:1]})
				f.WriteContinuation(id, false, block[1:2])
				f.WriteContinuation(id, true, block[2:])
				answer := rightAnswer(request)
				for _, piece := range [][]byte{answer[:3], nil, answer[3:20], answer[20:]} {
					f.WriteDataPadded(id, false, piece, make([]byte, 7))
					f.WritePing(false, [8]byte{1})
					f.WriteRawFrame(0xfe, 0, id, []byte("unknown"))
				}
				f.end(id)
			}, ok,
		},
		"no table of headers, small windows": {small, answerRight, ok},
		"trailers only": {nil, func(f *frames, id uint32, _ []byte) {
			block := f.encode(":status", "200", "grpc-status", "14", "grpc-message", "not%20now")
			f.WriteHeaders(http2.HeadersFrameParam{
				StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: true,
			})
		}, 14},
		"no trailers": {nil, func(f *frames, id uint32, request []byte) {
			f.begin(id)
			f.WriteData(id, true, rightAnswer(request))
		}, codeUnknown},
		"a proxy's page": {nil, func(f *frames, id uint32, _ []byte) {
			block := f.encode(":status", "503")
			f.WriteHeaders(http2.HeadersFrameParam{
				StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: true,
			})
		}, codeUnknown},
		"OK without an answer": {nil, func(f *frames, id uint32, _ []byte) { f.begin(id); f.end(id) }, wrong},
		"half an answer": {nil, func(f *frames, id uint32, request []byte) {
			f.begin(id)
			f.WriteData(id, false, rightAnswer(request)[:50])
			f.end(id)
		}, wrong},
		"two answers": {nil, func(f *frames, id uint32, request []byte) {
			f.begin(id)
			f.WriteData(id, false, append(rightAnswer(request), rightAnswer(request)...))
			f.end(id)
		}, wrong},
		"a compressed answer": {nil, func(f *frames, id uint32, request []byte) {
			f.begin(id)
			answer := rightAnswer(request)
			answer[0] = 1
			f.WriteData(id, false, answer)
			f.end(id)
		}, wrong},
		"bytes that don't parse": {nil, func(f *frames, id uint32, request []byte) {
			f.begin(id)
			answer := rightAnswer(request)
			answer[prefixLength] = 0
			f.WriteData(id, false, answer)
			f.end(id)
		}, wrong},
		"refused": {nil, func(f *frames, id uint32, _ []byte) { f.WriteRSTStream(id, http2.ErrCodeRefusedStream) }, refused},
		"reset":   {nil, func(f *frames, id uint32, _ []byte) { f.WriteRSTStream(id, http2.ErrCodeInternal) }, reset},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := runLoad(t, short(methodGet, serveFrames(t, each.settings, each.answer)))
			if made.Requests.Total == 0 || made.count(t, each.as) != made.Requests.Total {
				t.Fatalf("%v %v", made.Requests, made.Errors)
			}
		})
	}
}

// A leaving server says which requests it hasn't looked at: these are sent to another server, the others are lost.
func TestUnseenRequestsAreSentAgain(t *testing.T) {
	t.Parallel()
	address := serveFrames(t, nil, func(f *frames, id uint32, request []byte) {
		if id > 20 {
			f.WriteGoAway(20, http2.ErrCodeNo, nil)
			f.output.Flush()
			return
		}
		answerRight(f, id, request)
	})
	o := short(methodGet, address)
	o.Concurrency, o.DurationS = 1, 1
	made := runLoad(t, o)
	requirePassed(t, made)
	if made.Resent == 0 || made.Connections.GoAway == 0 || made.Connections.Opened < 2 {
		t.Fatalf("%d %v", made.Resent, made.Connections)
	}
}

func TestRequestsOfLostConnectionsFail(t *testing.T) {
	t.Parallel()
	address := serveFrames(t, nil, func(f *frames, id uint32, request []byte) {
		if id == 21 {
			f.WriteGoAway(1<<31-1, http2.ErrCodeInternal, nil)
			f.WriteRawFrame(http2.FrameSettings, 0, 7, nil) // a breach: settings belong to no stream
			f.output.Flush()
			return
		}
		answerRight(f, id, request)
	})
	o := short(methodGet, address)
	o.Concurrency = 4
	made := runLoad(t, o)
	if made.Requests.OK == 0 || made.count(t, connectionLost) == 0 || made.Connections.Lost == 0 {
		t.Fatalf("%v %v", made.Requests, made.Connections)
	}
}
