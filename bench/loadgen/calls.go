package main

import "fmt"

// call is a request under way: one or more lookups for the load, a stream for a connection. Its memory is used again
// for the next request.
type call struct {
	// Set by the load.
	due    int64  // nanoseconds of the load's clock
	sentTo string // target it was last sent to

	// Set by the work.
	target  int       // number of the target; -1: any
	keys    []uint32  // the keys looked up
	results []outcome // the outcome of each key
	verdict outcome   // on the answer as a whole: ok until something is wrong with it
	reason  string    // why the verdict, or one of the results, isn't ok
	settled int       // how many keys have an outcome
	scan    scan      // if the call is a scan
	request []byte    // gRPC's five bytes and the message

	// Set by the connection.
	stream  stream
	message []byte // the received part of a message
}

// prepare makes it a call for these keys.
func (c *call) prepare(target int, keys []uint32) {
	c.target, c.keys = target, keys
	c.verdict, c.reason, c.settled = ok, "", 0
	c.results = c.results[:0]
	for range keys {
		c.results = append(c.results, unsettled)
	}
	c.request = append(c.request[:0], make([]byte, prefixLength)...)
}

// settle notes the outcome of the next key.
func (c *call) settle(result outcome, reason string) {
	c.results[c.settled] = result
	c.settled++
	if result != ok && c.reason == "" {
		c.reason = reason
	}
}

// condemn notes that the answer doesn't fit the request.
func (c *call) condemn(reason string) {
	c.verdict = wrong
	if c.reason == "" {
		c.reason = reason
	}
}

// conclude sets the outcome of each key and returns the outcome of the whole call. `ended` says how its stream ended.
func (c *call) conclude(ended outcome) outcome {
	whole := worse(c.verdict, ended)
	for _, result := range c.results {
		if result != unsettled {
			whole = worse(whole, result)
		}
	}
	for number, result := range c.results {
		switch {
		case result == unsettled && whole != ok:
			c.results[number] = whole
		case ended != ok && result == ok:
			// The answer came, but then the status said that it doesn't count.
			c.results[number] = ended
		}
	}
	return whole
}

// firstFailed returns the first key whose outcome isn't ok; the first key if all are.
func (c *call) firstFailed() uint32 {
	for number, result := range c.results {
		if result != ok {
			return c.keys[number]
		}
	}
	return c.keys[0]
}

func differs(value []byte) string {
	const shown = 120
	if len(value) > shown {
		return fmt.Sprintf("the value is %q... (%d bytes)", value[:shown], len(value))
	}
	return fmt.Sprintf("the value is %q", value)
}
