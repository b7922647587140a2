package stores

import (
	"encoding/json"
	"fmt"

	"statehouse-dataplane/engine"
)

// Shown is a store as it was at one moment: its entries, and what was noted with them. It is to be closed.
type Shown struct {
	*engine.View
	// Position is the next offset that the entries need, StreamTimeMS the largest time of them, -1 without any.
	Position, StreamTimeMS int64
}

// ShownBy reads what was noted with the entries of a view.
func ShownBy(view *engine.View) (Shown, error) {
	noted := struct {
		Position     int64 `json:"position"`
		StreamTimeMS int64 `json:"stream_time_ms"`
	}{StreamTimeMS: -1}
	state, err := view.State()
	if err == nil && state != nil {
		if err = json.Unmarshal(state, &noted); err != nil {
			err = fmt.Errorf("damaged checkpoint: %w", err)
		}
	}
	return Shown{view, noted.Position, noted.StreamTimeMS}, err
}

// present opens what a store with a stream time has now. The time is asked for after the view is there: it only moves
// forward, and before anything that it makes late is removed.
func present(database *engine.Database, time *streamTime) (Shown, error) {
	view, err := database.View()
	if err != nil {
		return Shown{}, err
	}
	return Shown{View: view, StreamTimeMS: time.now()}, nil
}
