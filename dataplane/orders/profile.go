package orders

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"time"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// profile returns what takes the program's processor time or memory.
func (o *Orders) profile(order *controlv1.EngineProfile) (*controlv1.EngineAnswer, error) {
	var data bytes.Buffer
	var err error
	switch order.Kind {
	case controlv1.EngineProfileKind_ENGINE_PROFILE_KIND_CPU:
		if err = pprof.StartCPUProfile(&data); err == nil {
			err = o.wait(time.Duration(order.Millis) * time.Millisecond)
			pprof.StopCPUProfile()
		}
	case controlv1.EngineProfileKind_ENGINE_PROFILE_KIND_HEAP:
		runtime.GC() // else it is of what there was before the last collection
		err = pprof.Lookup("heap").WriteTo(&data, 0)
	case controlv1.EngineProfileKind_ENGINE_PROFILE_KIND_GOROUTINES:
		err = pprof.Lookup("goroutine").WriteTo(&data, 0)
	default:
		err = fmt.Errorf("a profile that is not known here: %v", order.Kind)
	}
	if err != nil {
		return nil, err
	}
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Profile{Profile: data.Bytes()}}, nil
}

// wait waits, unless the program ends.
func (o *Orders) wait(duration time.Duration) error {
	select {
	case <-time.After(duration):
		return nil
	case <-o.ctx.Done():
		return errors.New("the program ends")
	}
}
