package stores

import "encoding/json"

// Checkpoint is the state that is written with a store's entries. Its form, and what its fields mean, are in
// query_service/states/checkpoint.py.
type Checkpoint struct {
	Topic         string `json:"topic"`
	TopicID       string `json:"topic_id"`
	Position      int64  `json:"position"`
	AtEndMS       int64  `json:"at_end_ms"`
	StreamTimeMS  int64  `json:"stream_time_ms"`
	FormatVersion int    `json:"format_version"`
	Layout        string `json:"layout"`
	Misplaced     *int64 `json:"misplaced"`
	BootID        string `json:"boot_id"`
	OffsetMS      int64  `json:"offset_ms"`
	PlacedBy      int    `json:"placed_by"`
	// Batch and RecordsEnd are of the newest record. A checkpoint without them has nil.
	Batch      *int64 `json:"batch,omitempty"`
	RecordsEnd *int64 `json:"records_end"`
	// Entries is how many there are; nil if nobody has counted them.
	Entries *int64 `json:"entries,omitempty"`
	// Segments is how many of them each segment has.
	Segments map[int64]int64 `json:"segments,omitempty"`
}

func (c Checkpoint) bytes() []byte {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // it has no value that can't be written
	}
	return text
}
