package main

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// report is what loadgen prints. README.md explains each field.
type report struct {
	Config              options       `json:"config"`
	BeganAt             float64       `json:"began_at"`
	MeasuredS           float64       `json:"measured_s"`
	Passed              bool          `json:"passed"`
	Requests            counts        `json:"requests"`
	Lookups             counts        `json:"lookups"`
	RequestsPerS        float64       `json:"requests_per_s"`
	LookupsPerS         float64       `json:"lookups_per_s"`
	LatencyUs           latencies     `json:"latency_us"`
	SendDelayUs         *distribution `json:"send_delay_us"`
	Series              series        `json:"series"`
	LongestGap          reportedGap   `json:"longest_gap"`
	LongestPartitionGap *reportedGap  `json:"longest_partition_gap"`
	Errors              []sample      `json:"errors"`
	Connections         connections   `json:"connections"`
	Resent              int           `json:"resent"`
	CPUS                float64       `json:"cpu_s"`
}

type counts struct {
	Total     int            `json:"total"`
	OK        int            `json:"ok"`
	Failed    int            `json:"failed"`
	ByOutcome map[string]int `json:"by_outcome"`
}

type latencies struct {
	OK     distribution `json:"ok"`
	Failed distribution `json:"failed"`
}

type distribution struct {
	Count     int64   `json:"count"`
	Mean      float64 `json:"mean"`
	P50       int64   `json:"p50"`
	P90       int64   `json:"p90"`
	P99       int64   `json:"p99"`
	P999      int64   `json:"p99_9"`
	Max       int64   `json:"max"`
	Histogram string  `json:"histogram"`
}

type reportedGap struct {
	Partition *int    `json:"partition,omitempty"`
	GapMs     float64 `json:"gap_ms"`
	AtMs      float64 `json:"at_ms"`
}

// hasWrong returns whether a value was wrong or missing.
func (r *report) hasWrong() bool {
	return r.Lookups.ByOutcome[wrong.String()]+r.Lookups.ByOutcome[missing.String()]+
		r.Requests.ByOutcome[wrong.String()] > 0
}

// report sums up. `cpuS` is the processor time used in the measured time.
func (r *record) report(o options, beganAt time.Time, cpuS float64) (*report, error) {
	measuredS := float64(r.ends-r.began) / 1e9
	okLatency, err := distributionOf(r.okLatency)
	if err != nil {
		return nil, err
	}
	failedLatency, err := distributionOf(r.failedLatency)
	if err != nil {
		return nil, err
	}
	made := &report{
		Config: o, BeganAt: float64(beganAt.UnixNano()) / 1e9, MeasuredS: measuredS,
		Requests: r.requests.counts(), Lookups: r.lookups.counts(),
		LatencyUs: latencies{okLatency, failedLatency},
		Series:    r.series, LongestGap: r.reported(r.gap), Errors: r.errors, Connections: r.connections,
		Resent: r.resent, CPUS: cpuS,
	}
	made.Passed = made.Requests.OK > 0 && made.Requests.Failed == 0
	if measuredS > 0 {
		made.RequestsPerS = float64(made.Requests.OK) / measuredS
		made.LookupsPerS = float64(made.Lookups.OK) / measuredS
	}
	if o.Rate > 0 {
		delay, err := distributionOf(r.sendDelay)
		if err != nil {
			return nil, err
		}
		made.SendDelayUs = &delay
	}
	for partition, each := range r.partitionGaps {
		if found := r.reported(each); made.LongestPartitionGap == nil || found.GapMs > made.LongestPartitionGap.GapMs {
			found.Partition = &partition
			made.LongestPartitionGap = &found
		}
	}
	return made, nil
}

func (t tally) counts() counts {
	all := counts{OK: t[ok], ByOutcome: map[string]int{}}
	for each, count := range t {
		all.Total += count
		if count > 0 {
			all.ByOutcome[outcome(each).String()] = count
		}
	}
	all.Failed = all.Total - all.OK
	return all
}

// reported returns the longest gap; the end of the measured time counts as the last event.
func (r *record) reported(g gap) reportedGap {
	g.end(r.ends)
	return reportedGap{GapMs: float64(g.longest) / 1e6, AtMs: float64(g.beganAt-r.began) / 1e6}
}

func distributionOf(histogram *hdrhistogram.Histogram) (distribution, error) {
	encoded, err := histogram.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	return distribution{
		Count: histogram.TotalCount(), Mean: histogram.Mean(), P50: histogram.ValueAtQuantile(50),
		P90: histogram.ValueAtQuantile(90), P99: histogram.ValueAtQuantile(99),
		P999: histogram.ValueAtQuantile(99.9), Max: histogram.Max(), Histogram: string(encoded),
	}, err
}
