package orders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/files"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	statehousev1 "statehouse-dataplane/gen/statehouse/v1"
)

// Reads asks another node, at an address, for a part of a file: a serialized ReadFileRequest.
type Reads func(ctx context.Context, address string, request []byte) (files.Stream, error)

// Limit returns how much of files may go to and come from other nodes.
func (o *Orders) Limit() *files.Limit {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.limit
}

// fetching is the fetches under way, by the directory that files are put into.
type fetching struct {
	mutex sync.Mutex
	ends  map[string]map[*context.CancelFunc]struct{}
}

func (f *fetching) enter(ctx context.Context, directory string) (context.Context, func()) {
	ctx, end := context.WithCancel(ctx)
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.ends == nil {
		f.ends = map[string]map[*context.CancelFunc]struct{}{}
	}
	if f.ends[directory] == nil {
		f.ends[directory] = map[*context.CancelFunc]struct{}{}
	}
	f.ends[directory][&end] = struct{}{}
	return ctx, func() {
		end()
		f.mutex.Lock()
		defer f.mutex.Unlock()
		if delete(f.ends[directory], &end); len(f.ends[directory]) == 0 {
			delete(f.ends, directory)
		}
	}
}

// end ends all into a directory.
func (f *fetching) end(directory string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for end := range f.ends[directory] {
		(*end)()
	}
}

// checkpoint makes a store's files a checkpoint for another node.
func (o *Orders) checkpoint(order *controlv1.EngineCheckpoint) (*controlv1.EngineAnswer, error) {
	r, err := o.of(order.Store)
	if err != nil {
		return nil, err
	}
	state, err := r.database.Checkpoint(order.Path)
	if err != nil {
		return nil, err
	}
	described, err := files.Described(order.Path)
	if err != nil {
		return nil, engine.FaultOfDisk(order.Path, err)
	}
	manifest := &controlv1.EngineManifest{Checkpoint: state, Files: described}
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Manifest{Manifest: manifest}}, nil
}

// fetch fetches a file of another node's.
func (o *Orders) fetch(order *controlv1.EngineFetch) error {
	open := func(ctx context.Context, offset uint64) (files.Stream, error) {
		asked := &statehousev1.ReadFileRequest{Checkpoint: order.Asked.Checkpoint, File: order.Asked.File, Offset: offset}
		request, err := proto.Marshal(asked)
		if err != nil {
			return nil, err
		}
		return o.reads(ctx, order.Address, request)
	}
	silence := time.Duration(order.SilenceMs) * time.Millisecond
	ctx, leave := o.fetching.enter(o.ctx, order.Directory)
	defer leave()
	_, err := files.Fetch(ctx, open, order.File, order.Directory, silence, o.Limit())
	var fromPeer *files.PeerError
	var differs *files.ChecksumError
	switch {
	case errors.As(err, &differs), errors.As(err, &fromPeer), ctx.Err() != nil && err != nil:
		return err
	case err != nil:
		return engine.FaultOfDisk(order.Directory, err)
	}
	return nil
}

// adopt makes what was fetched a store. Its time is by this machine's clock from now on.
func (o *Orders) adopt(order *controlv1.EngineAdopt) error {
	o.mutex.Lock()
	resources := o.resources
	o.mutex.Unlock()
	if resources == nil {
		return errors.New("it was not started")
	}
	return engine.Adopt(order.Fetched, order.Path, resources, func(state []byte) ([]byte, error) {
		// Not as the checkpoint that is known here: what a newer version has written beside stays.
		fields := map[string]json.RawMessage{}
		if err := json.Unmarshal(state, &fields); err != nil {
			return nil, fmt.Errorf("a checkpoint: %w", err)
		}
		for name, value := range map[string]any{
			"at_end_ms": order.AtEndMs, "boot_id": order.BootId, "offset_ms": order.OffsetMs,
		} {
			text, err := json.Marshal(value)
			if err != nil {
				return nil, err
			}
			fields[name] = text
		}
		return json.Marshal(fields)
	})
}
