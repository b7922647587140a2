package admit

import (
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/placement"
)

// Why a read is Python's to answer.
const (
	none         = controlv1.ServingObstacle_SERVING_OBSTACLE_UNSPECIFIED
	notPlain     = controlv1.ServingObstacle_SERVING_OBSTACLE_NOT_PLAIN
	unknownStore = controlv1.ServingObstacle_SERVING_OBSTACLE_UNKNOWN_STORE
	keyObstacle  = controlv1.ServingObstacle_SERVING_OBSTACLE_KEY
	value        = controlv1.ServingObstacle_SERVING_OBSTACLE_VALUE
	epoch        = controlv1.ServingObstacle_SERVING_OBSTACLE_EPOCH
	partition    = controlv1.ServingObstacle_SERVING_OBSTACLE_PARTITION
	noEnd        = controlv1.ServingObstacle_SERVING_OBSTACLE_NO_END
	broken       = controlv1.ServingObstacle_SERVING_OBSTACLE_BOUND
	moment       = controlv1.ServingObstacle_SERVING_OBSTACLE_MOMENT
	otherKind    = controlv1.ServingObstacle_SERVING_OBSTACLE_KIND
)

// kinds is a set of what stores are built on.
type kinds uint

const (
	keyValue  kinds = 1 << controlv1.EngineKind_ENGINE_KIND_KEY_VALUE
	window    kinds = 1 << controlv1.EngineKind_ENGINE_KIND_WINDOW
	session   kinds = 1 << controlv1.EngineKind_ENGINE_KIND_SESSION
	versioned kinds = 1 << controlv1.EngineKind_ENGINE_KIND_VERSIONED
)

// Held is a replica that the data plane holds.
type Held interface {
	// Position returns the next offset that the replica needs. Everything before it is there to read.
	Position() int64
	// End returns the last known end of its log, nil if none is known.
	End() *controlv1.ServingEnd
	// Moments returns the batches that it shows, nil if none is known.
	Moments() *controlv1.ServingMoments
}

// Store is a store that may be read without asking Python.
type Store[R Held] struct {
	name       string
	keyForm    controlv1.KeyForm
	valueForm  controlv1.ValueForm
	isGlobal   bool
	kind       kinds
	windowMS   int64
	partitions []replica[R]
	// What the processor last reported for it, nil if nothing is known.
	report func() *controlv1.ServingReport
}

type replica[R Held] struct {
	isHere        bool
	isActive      bool
	head          []byte
	concealedHead []byte
	held          R
}

// Stamped is a replica that may answer, and what its stamp says.
type Stamped[R Held] struct {
	Held R

	head []byte
	// -1 if it is unknown.
	position, lag, stalenessMS, ageMS, backlog int64
	// Moment is the batch that is to be read.
	Moment Moment
}

// Snapshot is what Python has decided. What it says doesn't change.
type Snapshot[R Held] struct {
	Number      uint64
	epoch       uint64
	MostEntries int
	// Whether only those are answered who have a permit.
	NeedsPermits bool
	version      string
	stores       map[string]*Store[R]
}

// New returns a snapshot. `heldBy` returns the replica of a number, and whether it is open; `reportOf` what tells of a store.
func New[R Held](
	decided *controlv1.ServingSnapshot, heldBy func(uint64) (R, bool), reportOf func(string) func() *controlv1.ServingReport,
) *Snapshot[R] {
	s := &Snapshot[R]{
		Number: decided.Number, epoch: decided.Epoch, MostEntries: int(decided.MaxBatchEntries),
		NeedsPermits: decided.NeedsPermits, version: decided.Version, stores: map[string]*Store[R]{},
	}
	for _, each := range decided.Stores {
		if each.PartitionCount == 0 || each.PartitionCount > placement.MostPartitions {
			continue // all of it is Python's
		}
		store := &Store[R]{
			name: each.Name, keyForm: each.KeyForm, valueForm: each.ValueForm, isGlobal: each.IsGlobal, report: reportOf(each.Name),
			kind: 1 << uint(each.Kind), windowMS: each.WindowSizeMs,
		}
		store.partitions = make([]replica[R], each.PartitionCount)
		for _, of := range each.Replicas {
			if held, isOpen := heldBy(of.Store); isOpen && of.Partition < each.PartitionCount {
				store.partitions[of.Partition] = replica[R]{true, of.IsActive, of.Head, of.ConcealedHead, held}
			}
		}
		s.stores[each.Name] = store
	}
	return s
}

// store returns the store of a read, nil if it is Python's.
func (s *Snapshot[R]) store(terms *Terms, of kinds) (*Store[R], controlv1.ServingObstacle) {
	store := s.stores[string(terms.Store)]
	if store == nil {
		return nil, unknownStore
	}
	if store.kind&of == 0 {
		return nil, otherKind
	}
	if terms.epoch != 0 && terms.epoch != s.epoch {
		return nil, epoch
	}
	if !terms.moment.isOf(s.version) {
		return nil, moment
	}
	return store, none
}

// shown returns the form in which values are shown, unspecified if only Python can.
func (s *Store[R]) shown(terms *Terms) controlv1.ValueForm {
	if terms.Raw {
		return controlv1.ValueForm_VALUE_FORM_RAW
	}
	return s.valueForm
}

// stamp says whether a partition may answer, and with which stamp.
func (s *Store[R]) stamp(number uint32, terms *Terms, now int64, stamped *Stamped[R]) controlv1.ServingObstacle {
	of := &s.partitions[number]
	if !of.isHere {
		return partition
	}
	stamped.Held, stamped.head = of.held, of.head
	if terms.Conceals {
		stamped.head = of.concealedHead
	}
	end := of.held.End()
	if end == nil {
		return noEnd
	}
	stamped.position = of.held.Position()
	stamped.lag, stamped.stalenessMS, stamped.ageMS, stamped.backlog = -1, -1, -1, -1
	if now <= end.HoldsUntilUs {
		stamped.lag = max(0, end.Offset-stamped.position)
	}
	if end.AtEndUs != nil {
		stamped.stalenessMS = max(0, (now-*end.AtEndUs)/1000)
	}
	if report := s.report(); report != nil && report.AtUs != nil {
		stamped.ageMS = max(0, (now-*report.AtUs)/1000)
		if report.InputBacklog != nil {
			stamped.backlog = *report.InputBacklog
		}
	}
	if terms.activeOnly && !of.isActive || !stamped.isWithin(terms) {
		return broken
	}
	if terms.atLeast != nil && !isReached(terms.atLeast, s.name, number, stamped.position) {
		return broken
	}
	return none
}

// isWithin says whether the stamp is within the caller's bounds. What is unknown satisfies no bound.
func (s *Stamped[R]) isWithin(terms *Terms) bool {
	within := func(of bound, known, most int64) bool {
		return terms.bounds&of == 0 || known >= 0 && known <= most
	}
	return terms.bounds == 0 ||
		within(lagBound, s.lag, terms.maxLag) && within(stalenessBound, s.stalenessMS, terms.maxStalenessMS) &&
			within(ageBound, s.ageMS, terms.maxAgeMS) && within(backlogBound, s.backlog, terms.maxBacklog)
}

// Move has the stamp say the position of what was read, which may be after that at which the read was granted.
func (s *Stamped[R]) Move(position int64) {
	if position <= s.position {
		return
	}
	if s.lag >= 0 {
		s.lag = max(0, s.lag-(position-s.position))
	}
	s.position = position
}

// Tags of ReplicaStamp's fields, which the head doesn't have.
const (
	positionTag  = 5<<3 | byte(protowire.VarintType)
	lagTag       = 6<<3 | byte(protowire.VarintType)
	stalenessTag = 7<<3 | byte(protowire.VarintType)
	ageTag       = 10<<3 | byte(protowire.VarintType)
	backlogTag   = 11<<3 | byte(protowire.VarintType)
	momentTag    = 12<<3 | byte(protowire.BytesType)
)

// AppendStamp appends the serialized stamp.
func (s *Stamped[R]) AppendStamp(to []byte) []byte {
	to = append(to, s.head...)
	to = protowire.AppendVarint(append(to, positionTag), uint64(s.position))
	for _, each := range []struct {
		tag   byte
		value int64
	}{{lagTag, s.lag}, {stalenessTag, s.stalenessMS}, {ageTag, s.ageMS}, {backlogTag, s.backlog}} {
		if each.value >= 0 {
			to = protowire.AppendVarint(append(to, each.tag), uint64(each.value))
		}
	}
	if s.Moment.IsSet {
		to = s.Moment.append(to, momentTag)
	}
	return to
}

// began is one moment by both clocks: Go has no way to read the monotonic clock, which Python's times are of.
var began = func() struct {
	at time.Time
	us int64
} {
	var clock unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock); err != nil {
		panic(err) // there is no such machine
	}
	return struct {
		at time.Time
		us int64
	}{time.Now(), clock.Nano() / 1000}
}()

// Now returns the monotonic clock in microseconds, as Python has it.
func Now() int64 { return At(time.Now()) }

// At returns the same for a moment of this process.
func At(moment time.Time) int64 { return began.us + moment.Sub(began.at).Microseconds() }
