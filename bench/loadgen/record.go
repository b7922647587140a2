package main

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	seriesInterval = 100 * time.Millisecond
	// Samples of errors for each outcome.
	samplesMax = 5
	// Latencies are counted to three digits, up to twice the longest timeout.
	latencyMax    = 2 * timeoutMax * 1000 // microseconds
	latencyDigits = 3
)

// record counts the outcomes of the requests that were due in the measured time. Times are nanoseconds of the load's
// clock.
type record struct {
	began, ends   int64
	requests      tally
	lookups       tally
	okLatency     *hdrhistogram.Histogram
	failedLatency *hdrhistogram.Histogram
	sendDelay     *hdrhistogram.Histogram
	series        series
	gap           gap
	// By partition; none for scans, or if the number of partitions is unknown.
	partitionGaps []gap
	errors        []sample
	resent        int
	connections   connections // of the whole run, not only of the measured time
}

// tally counts by outcome.
type tally [outcomesEnd]int

// sample is a request that failed.
type sample struct {
	Outcome string  `json:"outcome"`
	AtMs    float64 `json:"at_ms"` // when it ended, from the beginning of the measured time
	Target  string  `json:"target"`
	Key     string  `json:"key"`
	Message string  `json:"message"`
}

type connections struct {
	Opened         int `json:"opened"`
	Lost           int `json:"lost"`
	GoAway         int `json:"goaway"`
	FailedAttempts int `json:"failed_attempts"`
}

// series has the requests that ended in each interval since the measured time began.
type series struct {
	IntervalMs int64   `json:"interval_ms"`
	OK         []int   `json:"ok"`
	Failed     []int   `json:"failed"`
	MaxUs      []int64 `json:"max_us"`
}

func newRecord(o options) *record {
	histogram := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, latencyMax, latencyDigits) }
	r := &record{
		okLatency: histogram(), failedLatency: histogram(), sendDelay: histogram(),
		series: series{IntervalMs: seriesInterval.Milliseconds(), OK: []int{}, Failed: []int{}, MaxUs: []int64{}},
		errors: []sample{},
	}
	if o.Method != methodScan {
		r.partitionGaps = make([]gap, o.Partitions)
	}
	return r
}

// measure sets the time that is measured.
func (r *record) measure(began, ends int64) {
	r.began, r.ends = began, ends
	r.gap.begin(began)
	for partition := range r.partitionGaps {
		r.partitionGaps[partition].begin(began)
	}
}

func (r *record) isMeasured(due int64) bool {
	return r.began <= due && due < r.ends
}

// add counts a call that ended at this time.
func (r *record) add(c *call, as outcome, message string, at int64) {
	if !r.isMeasured(c.due) {
		return
	}
	r.requests[as]++
	for _, result := range c.results {
		r.lookups[result]++
	}
	latencyUs := min((at-c.due)/int64(time.Microsecond), latencyMax)
	if as == ok {
		r.okLatency.RecordValue(latencyUs)
		r.gap.end(at)
	} else {
		r.failedLatency.RecordValue(latencyUs)
		r.addError(c, as, message, at)
	}
	r.addPartitions(c, at)
	r.series.add(int((at-r.began)/int64(seriesInterval)), as, latencyUs)
}

func (r *record) addPartitions(c *call, at int64) {
	if len(r.partitionGaps) == 0 {
		return
	}
	var key [keyLength]byte
	for number, result := range c.results {
		if result == ok {
			appendKey(key[:0], c.keys[number])
			r.partitionGaps[partitionOf(key[:], len(r.partitionGaps))].end(at)
		}
	}
}

func (r *record) addError(c *call, as outcome, message string, at int64) {
	if r.requests[as] > samplesMax {
		return
	}
	if message == "" {
		message = c.reason
	}
	key := string(appendKey(nil, c.firstFailed()))
	r.errors = append(r.errors, sample{as.String(), float64(at-r.began) / 1e6, c.sentTo, key, message})
}

// addDelay counts how late a request was sent.
func (r *record) addDelay(due, delay int64) {
	if r.isMeasured(due) {
		r.sendDelay.RecordValue(min(delay/int64(time.Microsecond), latencyMax))
	}
}

func (r *record) addResent(due int64) {
	if r.isMeasured(due) {
		r.resent++
	}
}

func (s *series) add(interval int, as outcome, latencyUs int64) {
	for len(s.OK) <= interval {
		s.OK, s.Failed, s.MaxUs = append(s.OK, 0), append(s.Failed, 0), append(s.MaxUs, 0)
	}
	if as == ok {
		s.OK[interval]++
	} else {
		s.Failed[interval]++
	}
	s.MaxUs[interval] = max(s.MaxUs[interval], latencyUs)
}

// gap finds the longest time between two events.
type gap struct {
	last             int64
	longest, beganAt int64
}

func (g *gap) begin(at int64) {
	*g = gap{last: at, beganAt: at}
}

// end notes an event.
func (g *gap) end(at int64) {
	if at-g.last > g.longest {
		g.longest, g.beganAt = at-g.last, g.last
	}
	g.last = max(g.last, at)
}
