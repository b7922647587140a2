package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// Redis' protocol, version 2: a request is an array of bulk strings; an answer begins with a line that says what it is.
const (
	lineEnd    = "\r\n"
	simpleHead = '+'
	errorHead  = '-'
	bulkHead   = '$'
	arrayHead  = '*'
	greeting   = "*1\r\n$4\r\nPING\r\n"
	welcome    = "+PONG\r\n"
)

var errNotRedis = errors.New("the server doesn't keep to Redis' protocol")

// redisConnection is our side of a connection to Redis. It is ready when the server has answered a PING. Requests don't
// wait for earlier answers, which come in the order of the requests: so do clients that share a connection.
type redisConnection struct {
	traffic
	listener listener
	input    *bufio.Reader
	reply    []byte  // read last
	sent     []*call // in order; nil: it has timed out, and its answer will be dropped
}

func newRedisConnection(input *bufio.Reader, listener listener) *redisConnection {
	c := &redisConnection{listener: listener, input: input}
	c.output.WriteString(greeting)
	return c
}

func (c *redisConnection) send(call *call) {
	c.sent = append(c.sent, call)
	c.output.Write(call.request[prefixLength:])
}

// pump does nothing: Redis takes all that is sent.
func (c *redisConnection) pump() {}

func (c *redisConnection) expire(due int64) {
	for number, call := range c.sent {
		if call != nil && call.due <= due {
			c.sent[number] = nil
			c.listener.ended(call, timedOut, "")
		}
	}
}

func (c *redisConnection) lose(message string) {
	c.isLeaving = true
	lost := c.sent
	c.sent = nil
	for _, call := range lost {
		if call != nil {
			c.listener.ended(call, connectionLost, message)
		}
	}
}

func (c *redisConnection) isDone() bool {
	return c.isLeaving && len(c.sent) == 0
}

// read reads a whole answer.
func (c *redisConnection) read() error {
	c.reply = c.reply[:0]
	return c.readParts(1)
}

func (c *redisConnection) readParts(count int) error {
	for ; count > 0; count-- {
		line, err := c.input.ReadSlice('\n')
		if err != nil {
			return err
		}
		c.reply = append(c.reply, line...)
		kind, length, parses := head(line)
		switch {
		case !parses:
			return fmt.Errorf("%w: %q", errNotRedis, line)
		case kind == arrayHead:
			count += max(length, 0)
		case kind == bulkHead && length >= 0:
			at := len(c.reply)
			c.reply = slices.Grow(c.reply, length+len(lineEnd))[:at+length+len(lineEnd)]
			if _, err := io.ReadFull(c.input, c.reply[at:]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *redisConnection) receive() error {
	if !c.isReady {
		if string(c.reply) != welcome {
			return fmt.Errorf("%w, or isn't ready: %q", errNotRedis, c.reply)
		}
		c.isReady = true
		return nil
	}
	if len(c.sent) == 0 {
		return fmt.Errorf("%w: an answer to nothing", errNotRedis)
	}
	call := c.sent[0]
	c.sent = c.sent[1:]
	switch {
	case call == nil:
	case c.reply[0] == errorHead:
		c.listener.ended(call, codeUnknown, string(bytes.TrimSpace(c.reply[1:])))
	default:
		c.listener.answered(call, c.reply)
		c.listener.ended(call, ok, "")
	}
	return nil
}

// head reads the line that an answer begins with: what it is, and how many bytes or parts follow; -1: there is no such
// value.
func head(line []byte) (kind byte, length int, parses bool) {
	text, isLine := bytes.CutSuffix(line, []byte(lineEnd))
	if !isLine || len(text) == 0 {
		return 0, 0, false
	}
	switch kind = text[0]; kind {
	case simpleHead, errorHead:
		return kind, 0, true
	case bulkHead, arrayHead:
		length, err := strconv.Atoi(string(text[1:]))
		return kind, length, err == nil && length >= -1 && length <= messageMax
	}
	return kind, 0, false
}

// redis is GET and MGET of strings.
type redis struct{}

func (redis) appendGet(to []byte, key uint32) []byte {
	return appendRedisKey(append(to, "*2\r\n$3\r\nGET\r\n"...), key)
}

func (redis) appendBatchGet(to []byte, keys []uint32) []byte {
	to = strconv.AppendInt(append(to, arrayHead), int64(1+len(keys)), 10)
	to = append(to, "\r\n$4\r\nMGET\r\n"...)
	for _, key := range keys {
		to = appendRedisKey(to, key)
	}
	return to
}

func appendRedisKey(to []byte, key uint32) []byte {
	to = strconv.AppendInt(append(to, bulkHead), keyLength, 10)
	return append(appendKey(append(to, lineEnd...), key), lineEnd...)
}

func (redis) readGet(message []byte, each func(answer)) bool {
	read, rest, parses := readRedisValue(message)
	if parses {
		each(read)
	}
	return parses && len(rest) == 0
}

func (redis) readBatchGet(message []byte, each func(answer)) bool {
	kind, count, rest, parses := cutHead(message)
	if !parses || kind != arrayHead {
		return false
	}
	for ; count > 0; count-- {
		var read answer
		if read, rest, parses = readRedisValue(rest); !parses {
			return false
		}
		each(read)
	}
	return len(rest) == 0
}

func readRedisValue(message []byte) (read answer, rest []byte, parses bool) {
	kind, length, rest, parses := cutHead(message)
	switch {
	case !parses || kind != bulkHead || len(rest) < length+len(lineEnd) && length >= 0:
		return answer{}, nil, false
	case length < 0:
		return answer{}, rest, true
	}
	return answer{found: true, value: rest[:length]}, rest[length+len(lineEnd):], true
}

func cutHead(message []byte) (kind byte, length int, rest []byte, parses bool) {
	end := bytes.IndexByte(message, '\n') + 1
	kind, length, parses = head(message[:end])
	return kind, length, message[end:], parses
}
