package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// Before each message gRPC writes whether it is compressed, and its length.
	prefixLength = 5
	messageMax   = 64 << 20
	// Bytes that a server may send before it has to wait for us: far more than is ever under way, because answers are
	// read as they come.
	connectionWindow = 64 << 20
	streamWindow     = 8 << 20
	// HTTP/2's defaults, until the server sets others.
	defaultWindow     = 65_535
	defaultFrameMax   = 16_384
	defaultTableBytes = 4_096
	streamIDMax       = 1<<31 - 1
	// Bytes that may wait for the socket before requests have to wait.
	outputMax = 1 << 20
	// Longest header to receive, in bytes.
	headerMax = 64 << 10
)

var errProtocol = errors.New("the server doesn't keep to HTTP/2")

// protocol is our side of a connection, without its socket: bytes to send wait in the output that `common` has. Not safe
// for concurrent use, but for `read`.
type protocol interface {
	common() *traffic
	// send sends the call now or as soon as the server takes it.
	send(c *call)
	// pump sends waiting calls, as far as the server takes them.
	pump()
	// expire ends the calls that were due at this time or before.
	expire(due int64)
	// lose ends all calls: the socket has ended.
	lose(message string)
	// isDone returns whether it takes no more calls and has none.
	isDone() bool
	// read waits for what the server sends next, and keeps it for `receive`; an error of either ends the connection.
	read() error
	receive() error
}

// traffic is what all protocols have.
type traffic struct {
	output    bytes.Buffer
	isReady   bool // the server takes calls
	isLeaving bool // takes no further calls
}

func (t *traffic) common() *traffic {
	return t
}

// listener hears of a connection's calls.
type listener interface {
	// answered gets a message of the answer. It is valid until the function returns.
	answered(c *call, message []byte)
	// ended gets how the call's stream ended; the connection has forgotten the call.
	ended(c *call, as outcome, message string)
	// unseen gets a call that was not sent, or that the server says it hasn't looked at.
	unseen(c *call)
}

// stream is a connection's part of a call.
type stream struct {
	id       uint32 // 0: not opened
	sent     int    // bytes of the request
	window   int64  // bytes that the server takes on this stream
	received int    // bytes received and not yet given back to the server's window
	headers
}

// headers are the headers of a server that matter here.
type headers struct {
	httpStatus, grpcStatus, grpcMessage string
}

// connection is our side of an HTTP/2 connection with gRPC calls of one method. It is ready when the server's settings
// have come.
type connection struct {
	traffic
	listener listener
	framer   *http2.Framer // writes
	frames   *http2.Framer // reads
	frame    http2.Frame   // read last
	decoder  *hpack.Decoder
	request  []hpack.HeaderField
	// Bytes of the headers: in the first request, and in later ones, when the server's table has them.
	first, later []byte

	streams map[uint32]*call
	sending []*call // not sent yet, in order; the first one may be sent in part
	nextID  uint32

	window        int64 // bytes that the server takes on all streams
	initialWindow int64
	frameMax      int
	streamsMax    int
	received      int // bytes received and not yet given back to the server's window

	block     headers // the headers being received
	blockEnds bool    // they end their stream
	goAways   int
}

// newConnection returns a connection whose output begins with our settings.
func newConnection(
	input io.Reader, scheme, authority, path string, timeoutMs int, listener listener,
) *connection {
	c := &connection{
		listener: listener,
		request: []hpack.HeaderField{
			{Name: ":method", Value: "POST"},
			{Name: ":scheme", Value: scheme},
			{Name: ":path", Value: path},
			{Name: ":authority", Value: authority},
			{Name: "te", Value: "trailers"},
			{Name: "content-type", Value: "application/grpc"},
			{Name: "user-agent", Value: "loadgen"},
			{Name: "grpc-timeout", Value: strconv.Itoa(timeoutMs) + "m"},
		},
		streams: map[uint32]*call{}, nextID: 1,
		window: defaultWindow, initialWindow: defaultWindow, frameMax: defaultFrameMax, streamsMax: streamIDMax,
	}
	c.framer = http2.NewFramer(&c.output, nil)
	c.frames = http2.NewFramer(io.Discard, input)
	c.frames.SetReuseFrames()
	c.frames.SetMaxReadFrameSize(defaultFrameMax)
	c.decoder = hpack.NewDecoder(defaultTableBytes, c.hear)
	c.decoder.SetMaxStringLength(headerMax)
	c.encodeRequest(defaultTableBytes)
	c.output.WriteString(http2.ClientPreface)
	c.framer.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
	)
	c.framer.WriteWindowUpdate(0, connectionWindow-defaultWindow)
	return c
}

// encodeRequest encodes the request's headers for a server whose table has this size. They are the same in every
// request, so the table has all of them after the first one. A table that might be too small isn't used.
func (c *connection) encodeRequest(tableBytes uint32) {
	var encoded bytes.Buffer
	encoder := hpack.NewEncoder(&encoded)
	encoder.SetMaxDynamicTableSizeLimit(tableBytes)
	if tableBytes < defaultTableBytes {
		encoder.SetMaxDynamicTableSize(0)
	} else {
		encoder.SetMaxDynamicTableSize(defaultTableBytes)
	}
	write := func() []byte {
		encoded.Reset()
		for _, field := range c.request {
			encoder.WriteField(field)
		}
		return bytes.Clone(encoded.Bytes())
	}
	c.first = write()
	c.later = write()
}

func (c *connection) send(call *call) {
	call.stream, call.message = stream{}, call.message[:0]
	c.sending = append(c.sending, call)
	c.pump()
}

func (c *connection) pump() {
	for len(c.sending) > 0 && c.isReady {
		next := c.sending[0]
		if next.stream.id == 0 {
			if c.isLeaving || len(c.streams) >= c.streamsMax || c.output.Len() > outputMax {
				return
			}
			c.open(next)
		}
		for s := &next.stream; s.sent < len(next.request); {
			length := min(int64(len(next.request)-s.sent), int64(c.frameMax), c.window, s.window)
			if length <= 0 || c.output.Len() > outputMax {
				return
			}
			part := next.request[s.sent:][:length]
			s.sent += len(part)
			s.window -= length
			c.window -= length
			c.framer.WriteData(s.id, s.sent == len(next.request), part)
		}
		c.sending = c.sending[1:]
	}
}

func (c *connection) open(call *call) {
	call.stream.id, call.stream.window = c.nextID, c.initialWindow
	c.nextID += 2
	c.isLeaving = c.isLeaving || c.nextID > streamIDMax
	c.streams[call.stream.id] = call
	block := c.later
	if c.first != nil {
		block, c.first = c.first, nil
	}
	c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: call.stream.id, BlockFragment: block, EndHeaders: true})
}

// forget removes a call whose stream has ended.
func (c *connection) forget(ended *call) {
	delete(c.streams, ended.stream.id)
	if ended.stream.sent < len(ended.request) {
		c.sending = slices.DeleteFunc(c.sending, func(each *call) bool { return each == ended })
	}
}

// end tells the listener how a call ended.
func (c *connection) end(call *call, as outcome, message string) {
	c.forget(call)
	c.listener.ended(call, as, message)
	c.pump()
}

// cancel ends a call and tells the server.
func (c *connection) cancel(call *call, as outcome, message string) {
	if call.stream.id != 0 {
		c.framer.WriteRSTStream(call.stream.id, http2.ErrCodeCancel)
	}
	c.end(call, as, message)
}

func (c *connection) expire(due int64) {
	var expired []*call
	for _, call := range c.streams {
		if call.due <= due {
			expired = append(expired, call)
		}
	}
	for _, call := range c.sending {
		if call.stream.id == 0 && call.due <= due {
			expired = append(expired, call)
		}
	}
	for _, call := range expired {
		c.cancel(call, timedOut, "")
	}
}

func (c *connection) lose(message string) {
	c.isLeaving = true
	c.giveBack()
	for _, call := range c.streams {
		c.end(call, connectionLost, message)
	}
}

// giveBack gives the calls that were not sent back to the listener, which sends them elsewhere.
func (c *connection) giveBack() {
	waiting := slices.Clone(c.sending)
	c.sending = slices.DeleteFunc(c.sending, func(call *call) bool { return call.stream.id == 0 })
	for _, call := range waiting {
		if call.stream.id == 0 {
			c.listener.unseen(call)
		}
	}
}

func (c *connection) isDone() bool {
	return c.isLeaving && len(c.streams) == 0
}

func (c *connection) read() (err error) {
	c.frame, err = c.frames.ReadFrame()
	return err
}

func (c *connection) receive() error {
	switch frame := c.frame.(type) {
	case *http2.DataFrame:
		c.takeData(frame)
	case *http2.HeadersFrame:
		c.block, c.blockEnds = headers{}, frame.StreamEnded()
		return c.takeHeaders(frame.StreamID, frame.HeaderBlockFragment(), frame.HeadersEnded())
	case *http2.ContinuationFrame:
		return c.takeHeaders(frame.StreamID, frame.HeaderBlockFragment(), frame.HeadersEnded())
	case *http2.RSTStreamFrame:
		c.takeReset(frame)
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return c.takeSettings(frame)
		}
	case *http2.WindowUpdateFrame:
		if frame.StreamID == 0 {
			c.window += int64(frame.Increment)
		} else if call, isKnown := c.streams[frame.StreamID]; isKnown {
			call.stream.window += int64(frame.Increment)
		}
		c.pump()
	case *http2.PingFrame:
		if !frame.IsAck() {
			c.framer.WritePing(true, frame.Data)
		}
	case *http2.GoAwayFrame:
		c.takeGoAway(frame.LastStreamID)
	case *http2.PushPromiseFrame:
		return fmt.Errorf("%w: it pushes", errProtocol)
	}
	return nil
}

func (c *connection) takeSettings(frame *http2.SettingsFrame) error {
	err := frame.ForeachSetting(func(setting http2.Setting) error {
		switch setting.ID {
		case http2.SettingHeaderTableSize:
			c.encodeRequest(setting.Val)
		case http2.SettingMaxConcurrentStreams:
			c.streamsMax = int(setting.Val)
		case http2.SettingMaxFrameSize:
			c.frameMax = int(setting.Val)
		case http2.SettingInitialWindowSize:
			for _, call := range c.streams {
				call.stream.window += int64(setting.Val) - c.initialWindow
			}
			c.initialWindow = int64(setting.Val)
		}
		return setting.Valid()
	})
	c.isReady = true
	c.framer.WriteSettingsAck()
	c.pump()
	return err
}

// takeGoAway takes no more calls, because the server leaves.
func (c *connection) takeGoAway(lastSeen uint32) {
	c.isLeaving, c.goAways = true, c.goAways+1
	c.giveBack()
	for id, call := range c.streams {
		if id > lastSeen {
			c.forget(call)
			c.listener.unseen(call)
		}
	}
}

func (c *connection) takeReset(frame *http2.RSTStreamFrame) {
	call, isKnown := c.streams[frame.StreamID]
	if !isKnown {
		return
	}
	as := reset
	if frame.ErrCode == http2.ErrCodeRefusedStream {
		as = refused
	}
	c.end(call, as, frame.ErrCode.String())
}

// takeHeaders reads a part of a header block. It reads headers of unknown streams, too: they change our table.
func (c *connection) takeHeaders(id uint32, part []byte, isLast bool) error {
	if _, err := c.decoder.Write(part); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	if !isLast {
		return nil
	}
	if err := c.decoder.Close(); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	call, isKnown := c.streams[id]
	if !isKnown {
		return nil
	}
	if c.block.httpStatus != "" {
		call.stream.httpStatus = c.block.httpStatus
	}
	call.stream.grpcStatus, call.stream.grpcMessage = c.block.grpcStatus, c.block.grpcMessage
	if c.blockEnds {
		c.conclude(call)
	}
	return nil
}

// hear gets each header of a block.
func (c *connection) hear(field hpack.HeaderField) {
	switch field.Name {
	case ":status":
		c.block.httpStatus = field.Value
	case "grpc-status":
		c.block.grpcStatus = field.Value
	case "grpc-message":
		c.block.grpcMessage = field.Value
	}
}

// conclude ends a call whose stream the server has ended.
func (c *connection) conclude(call *call) {
	s := call.stream
	code, err := strconv.ParseUint(s.grpcStatus, 10, 32)
	switch {
	case err != nil:
		c.end(call, codeUnknown, fmt.Sprintf("no grpc-status; HTTP status %q", s.httpStatus))
	case len(call.message) > 0 && code == uint64(ok):
		c.end(call, wrong, "the answer ends within a message")
	default:
		message := s.grpcMessage
		if decoded, err := url.PathUnescape(message); err == nil {
			message = decoded
		}
		c.end(call, outcomeOfCode(code), message)
	}
}

func (c *connection) takeData(frame *http2.DataFrame) {
	c.received += int(frame.Length)
	if c.received >= connectionWindow/2 {
		c.framer.WriteWindowUpdate(0, uint32(c.received))
		c.received = 0
	}
	call, isKnown := c.streams[frame.StreamID]
	if !isKnown {
		return
	}
	call.stream.received += int(frame.Length)
	if call.stream.received >= streamWindow/2 && !frame.StreamEnded() {
		c.framer.WriteWindowUpdate(frame.StreamID, uint32(call.stream.received))
		call.stream.received = 0
	}
	if reason := c.takeMessages(call, frame.Data()); reason != "" {
		c.cancel(call, wrong, reason)
	} else if frame.StreamEnded() {
		c.conclude(call)
	}
}

// takeMessages passes on the messages that these bytes complete, and keeps the rest. If a message can't be read, it
// returns the reason.
func (c *connection) takeMessages(call *call, data []byte) (reason string) {
	// Most answers are in one frame and are not copied.
	isCopied := len(call.message) > 0
	if isCopied {
		call.message = append(call.message, data...)
		data = call.message
	}
	for rest := data; ; {
		length := messageMax + 1
		if len(rest) >= prefixLength {
			length = int(binary.BigEndian.Uint32(rest[1:]))
			if length > messageMax {
				return fmt.Sprintf("a message of %d bytes", length)
			}
			if rest[0] != 0 {
				return "a compressed message"
			}
		}
		if len(rest)-prefixLength < length {
			if !isCopied || len(rest) < len(data) {
				call.message = append(call.message[:0], rest...)
			}
			return ""
		}
		c.listener.answered(call, rest[prefixLength:][:length])
		rest = rest[prefixLength+length:]
	}
}

// frameMessage writes gRPC's five bytes into the room left for them before a message.
func frameMessage(framed []byte) []byte {
	framed[0] = 0
	binary.BigEndian.PutUint32(framed[1:], uint32(len(framed)-prefixLength))
	return framed
}
