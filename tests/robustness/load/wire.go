package main

import (
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of fields in protos/statehouse/v1: the only ones that are put together or read here.
const (
	requestFreshness  = 3 // GetRequest.freshness
	freshnessAtLeast  = 4 // Freshness.at_least
	positionsEntry    = 1 // Positions.positions
	positionStore     = 1 // StorePosition.store
	positionPartition = 2 // StorePosition.partition
	positionPosition  = 3 // StorePosition.position
	responseReplica   = 3 // GetResponse.replica
	batchRequests     = 1 // BatchGetRequest.requests
	batchResults      = 1 // BatchGetResponse.results
	resultResponse    = 1 // BatchGetResult.response
	replicaPosition   = 5 // ReplicaStamp.position
)

// rawCodec sends and receives messages as the bytes they are.
type rawCodec struct{}

func (rawCodec) Marshal(message any) ([]byte, error) { return message.([]byte), nil }

func (rawCodec) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte{}, data...)
	return nil
}

func (rawCodec) Name() string { return "proto" }

// atLeast returns the part of a GetRequest that asks for a position of a partition.
func atLeast(store string, partition uint32, position int64) []byte {
	var entry []byte
	entry = protowire.AppendTag(entry, positionStore, protowire.BytesType)
	entry = protowire.AppendString(entry, store)
	entry = protowire.AppendTag(entry, positionPartition, protowire.VarintType)
	entry = protowire.AppendVarint(entry, uint64(partition))
	entry = protowire.AppendTag(entry, positionPosition, protowire.VarintType)
	entry = protowire.AppendVarint(entry, uint64(position))
	return field(requestFreshness, field(freshnessAtLeast, field(positionsEntry, entry)))
}

// positionIn returns the position that a GetResponse says it was read at, and whether it says so.
func positionIn(response []byte) (int64, bool) {
	replica, _ := protowire.ConsumeBytes(find(response, responseReplica, protowire.BytesType))
	position, length := protowire.ConsumeVarint(find(replica, replicaPosition, protowire.VarintType))
	return int64(position), length > 0
}

// field returns a message with one field, another message.
func field(number protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), message)
}

// answersIn returns the GetResponse of each result in a BatchGetResponse, empty where a lookup was refused.
func answersIn(response []byte) (answers [][]byte) {
	for result := range values(response, batchResults, protowire.BytesType) {
		fields, _ := protowire.ConsumeBytes(result)
		answer, _ := protowire.ConsumeBytes(find(fields, resultResponse, protowire.BytesType))
		answers = append(answers, answer)
	}
	return answers
}

// find returns the last value of a message's field as it is encoded; nil if there is none.
func find(message []byte, number protowire.Number, kind protowire.Type) (last []byte) {
	for value := range values(message, number, kind) {
		last = value
	}
	return last
}

// values yields each value of a message's field as it is encoded. It ends where the message is broken, which who decodes it
// as a whole will find.
func values(message []byte, number protowire.Number, kind protowire.Type) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(message) > 0 {
			foundNumber, foundKind, tagLength := protowire.ConsumeTag(message)
			if tagLength < 0 {
				return
			}
			length := protowire.ConsumeFieldValue(foundNumber, foundKind, message[tagLength:])
			if length < 0 {
				return
			}
			if foundNumber == number && foundKind == kind && !yield(message[tagLength:tagLength+length]) {
				return
			}
			message = message[tagLength+length:]
		}
	}
}
