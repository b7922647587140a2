package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	batchMax   = 1_000 // keys; servers take so many by default
	spanMax    = 1_000_000
	hotMax     = 1_000
	timeoutMax = 60_000 // milliseconds
	// Most requests under way; in an open loop there can be rate times timeout.
	underWayMax = 1_000_000
)

// options are the command line's. README.md explains each.
type options struct {
	Kind        string   `json:"kind"`
	Method      string   `json:"method"`
	Targets     []string `json:"targets"`
	Owners      []int    `json:"owners"`
	Partitions  int      `json:"partitions"`
	Connections int      `json:"connections"`
	Store       string   `json:"store"`
	Raw         bool     `json:"raw"`
	StalenessMs uint64   `json:"max_staleness_ms"`
	Newest      bool     `json:"newest"`
	Hot         uint     `json:"hot"`
	Keys        uint     `json:"keys"`
	Version     uint     `json:"version"`
	Tail        bool     `json:"tail"`
	Batch       int      `json:"batch"`
	Span        uint     `json:"span"`
	Concurrency int      `json:"concurrency"`
	Rate        float64  `json:"rate"`
	DurationS   float64  `json:"duration_s"`
	WarmupS     float64  `json:"warmup_s"`
	TimeoutMs   int      `json:"timeout_ms"`
	Seed        uint64   `json:"seed"`
	TLSCA       string   `json:"tls_ca"`
	TLSCert     string   `json:"tls_certificate"`
	TLSKey      string   `json:"tls_key"`
}

func defaults() options {
	return options{
		Kind: kindOurs, Method: methodGet, Connections: 1, Batch: 100, Span: 100, DurationS: 10, WarmupS: 2,
		TimeoutMs: 1000, Seed: 1,
	}
}

// parse reads options from a command line and from the file that it names. If an option is given twice, the later one
// counts. It returns flag.ErrHelp after it has printed the help that was asked for.
func parse(arguments []string, help io.Writer) (options, error) {
	o := defaults()
	flags := flag.NewFlagSet("loadgen", flag.ContinueOnError)
	flags.SetOutput(help)
	flags.Func("config", "`FILE` with options as a JSON object", func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.DisallowUnknownFields()
		return decoder.Decode(&o)
	})
	flags.StringVar(&o.Kind, "kind", o.Kind, "kind of servers: ours, peer or redis")
	flags.StringVar(&o.Method, "method", o.Method, "get, batch_get or scan")
	flags.Func("targets", "`host:port,...`", func(text string) error {
		o.Targets = strings.Split(text, ",")
		return nil
	})
	flags.Func("owners", "for each partition the number of its target, from 0: `0,1,...`", func(text string) (err error) {
		o.Owners, err = integers(text)
		return err
	})
	flags.IntVar(&o.Partitions, "partitions", o.Partitions, "partitions of the store (default: as many as owners)")
	flags.IntVar(&o.Connections, "connections", o.Connections, "connections to each target")
	flags.StringVar(&o.Store, "store", o.Store, "name of the store (kind ours)")
	flags.BoolVar(&o.Raw, "raw", o.Raw, "ask for the changelog's bytes (kind ours)")
	flags.Uint64Var(&o.StalenessMs, "max-staleness-ms", o.StalenessMs, "bound of gets and batches (kind ours; 0: none)")
	flags.BoolVar(&o.Newest, "newest", o.Newest, "ask for the newest batch, all as of the same one (kind ours)")
	flags.UintVar(&o.Hot, "hot", o.Hot, "how often a key is asked for in gets, in times of all others together (0: no key)")
	flags.UintVar(&o.Keys, "keys", o.Keys, "number of keys")
	flags.UintVar(&o.Version, "version", o.Version, "version of the values")
	flags.BoolVar(&o.Tail, "tail", o.Tail, "values go on after what is checked")
	flags.IntVar(&o.Batch, "batch", o.Batch, "keys per batch_get")
	flags.UintVar(&o.Span, "span", o.Span, "consecutive keys per scan")
	flags.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "closed loop: requests under way")
	flags.Float64Var(&o.Rate, "rate", o.Rate, "open loop: requests a second")
	flags.Float64Var(&o.DurationS, "duration-s", o.DurationS, "seconds to measure")
	flags.Float64Var(&o.WarmupS, "warmup-s", o.WarmupS, "seconds to load before that")
	flags.IntVar(&o.TimeoutMs, "timeout-ms", o.TimeoutMs, "timeout of a request, in milliseconds")
	flags.Uint64Var(&o.Seed, "seed", o.Seed, "seed of the random keys")
	flags.StringVar(&o.TLSCA, "tls-ca", "", "`FILE` with what servers' certificates are signed with (default: no TLS)")
	flags.StringVar(&o.TLSCert, "tls-certificate", "", "`FILE` with the certificate to show")
	flags.StringVar(&o.TLSKey, "tls-key", "", "`FILE` with its key")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q is no option", flags.Arg(0))
	}
	if o.Partitions == 0 {
		o.Partitions = len(o.Owners)
	}
	return o, o.check()
}

// check returns everything that is wrong with the options.
func (o options) check() error {
	var wrong []error
	require := func(holds bool, rule string, values ...any) {
		if !holds {
			wrong = append(wrong, fmt.Errorf(rule, values...))
		}
	}
	require(slices.Contains([]string{kindOurs, kindPeer, kindRedis}, o.Kind),
		"kind is %q: it must be ours, peer or redis", o.Kind)
	require(slices.Contains([]string{methodGet, methodBatchGet, methodScan}, o.Method),
		"method is %q: it must be get, batch_get or scan", o.Method)
	require(len(o.Targets) > 0 && !slices.Contains(o.Targets, ""), "targets must be given, as host:port,...")
	for partition, owner := range o.Owners {
		require(owner >= 0 && owner < len(o.Targets),
			"the owner of partition %d is %d: there are targets 0 to %d", partition, owner, len(o.Targets)-1)
	}
	require(len(o.Owners) == 0 || o.Partitions == len(o.Owners),
		"there are %d partitions, but owners for %d", o.Partitions, len(o.Owners))
	require(o.Partitions >= 0, "partitions is %d", o.Partitions)
	require(o.Connections >= 1 && o.Connections <= 1000, "connections is %d: it must be 1 to 1000", o.Connections)
	require(o.Kind != kindOurs || o.Store != "", "store must be given")
	require(o.Keys >= 1 && o.Keys <= keysMax, "keys is %d: it must be 1 to %d", o.Keys, keysMax)
	require(o.Hot <= hotMax, "hot is %d: it must be 0 to %d", o.Hot, hotMax)
	require(o.Hot == 0 || o.Method == methodGet, "hot is for method get")
	require(o.StalenessMs == 0 || o.Kind == kindOurs && o.Method != methodScan,
		"max_staleness_ms is for kind ours, and get and batch_get")
	require(!o.Newest || o.Kind == kindOurs, "newest is for kind ours")
	require(o.Version < 1<<32, "version is %d: it must be below 2^32", o.Version)
	require(o.Batch >= 1 && o.Batch <= batchMax, "batch is %d: it must be 1 to %d", o.Batch, batchMax)
	require(o.Span >= 1 && o.Span <= spanMax, "span is %d: it must be 1 to %d", o.Span, spanMax)
	require(o.Method != methodScan || o.Span <= o.Keys, "span is %d, and there are only %d keys", o.Span, o.Keys)
	require((o.Concurrency > 0) != (o.Rate > 0), "one of concurrency and rate must be given, above 0")
	require(o.Kind != kindRedis || o.Method != methodScan, "redis has no scan of a range of keys")
	require(o.Kind != kindRedis || o.TLSCA == "", "redis is spoken to without TLS")
	require(o.DurationS > 0 && o.WarmupS >= 0, "duration_s must be above 0, warmup_s at least 0")
	require(o.TimeoutMs >= 1 && o.TimeoutMs <= timeoutMax,
		"timeout_ms is %d: it must be 1 to %d", o.TimeoutMs, timeoutMax)
	require((o.TLSCA == "") == (o.TLSCert == "") && (o.TLSCert == "") == (o.TLSKey == ""),
		"tls_ca, tls_certificate and tls_key must be given together")
	require(o.Rate*float64(o.TimeoutMs)/1000 <= underWayMax && o.Concurrency <= underWayMax,
		"that would be more than %d requests under way", underWayMax)
	return errors.Join(wrong...)
}

func (o options) timeout() time.Duration {
	return time.Duration(o.TimeoutMs) * time.Millisecond
}

func integers(text string) ([]int, error) {
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		number, err := strconv.Atoi(part)
		if err != nil {
			return nil, err
		}
		all = append(all, number)
	}
	return all, nil
}

func seconds(value float64) time.Duration {
	return time.Duration(value * float64(time.Second))
}
