package endpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Version of contract/dispatch.md.
const Version = 1

// maxPacketBytes and maxDescriptors limit a message and the file descriptors with it.
const (
	maxPacketBytes = 4096
	maxDescriptors = 3
)

// Delivery lists the contract's delivery modes of this package. In a domain that polls, an endpoint without that mode sleeps in its wakeup cell.
var Delivery = []string{"ring"}

// NodeRequest is a message from the endpoint: one member is set.
type NodeRequest struct {
	Hello          *Hello    `json:"hello,omitempty"`
	Ready          *struct{} `json:"ready,omitempty"`
	ChannelDrained *Drained  `json:"drained,omitempty"`
}

// Hello is the first message.
type Hello struct {
	Version  int      `json:"version"`
	Serves   bool     `json:"serves"`
	Wakeup   string   `json:"wakeup"`
	Delivery []string `json:"delivery,omitempty"`
}

// Drained reports that the endpoint holds nothing of a channel any more.
type Drained struct {
	Channel uint64 `json:"channel"`
}

// NodeMessage is a message from the node: one member is set, or none if this version does not define it.
type NodeMessage struct {
	Welcome     *Welcome `json:"welcome,omitempty"`
	JoinRefused *Refused `json:"refused,omitempty"`
	Peer        *Peer    `json:"peer,omitempty"`
	PeerGone    *Gone    `json:"gone,omitempty"`
}

// Welcome arrives with the descriptors of the pool, the wakeup cell and the eventfd.
type Welcome struct {
	Domain       string `json:"domain"`
	Endpoint     uint16 `json:"endpoint"`
	Function     string `json:"function"`
	Instance     uint64 `json:"instance"`
	Pool         uint64 `json:"pool"`
	MaxHeldBytes uint64 `json:"max_held_bytes"`
	Capacity     uint32 `json:"capacity"`
	Delivery     string `json:"delivery,omitempty"`
}

// Refused holds the reason for which the node refuses the endpoint.
type Refused struct {
	Reason string `json:"reason"`
}

// knownFields counts the members that are set; more than one in a packet is an error.
func (in *NodeMessage) knownFields() (known int) {
	for _, there := range []bool{in.Welcome != nil, in.JoinRefused != nil, in.Peer != nil, in.PeerGone != nil} {
		if there {
			known++
		}
	}
	return known
}

// Peer arrives with the descriptors of the channel, the peer's wakeup cell and its eventfd, if any. The callee has its own name
// and Aliases; without a Function it is the gateway. It receives the events that the filters in Topics select; with EventsOnly it takes no calls. Only the answers of a
// Watchdog can be errors of the platform.
type Peer struct {
	Channel  uint64 `json:"channel"`
	Side     string `json:"side"`
	Endpoint uint16 `json:"endpoint"`
	Function string `json:"function"`
	Instance uint64 `json:"instance"`
	Capacity uint32 `json:"capacity"`
	Watchdog bool   `json:"watchdog,omitempty"`

	Aliases    []string `json:"aliases,omitempty"`
	Topics     []string `json:"topics,omitempty"`
	EventsOnly bool     `json:"events_only,omitempty"`
}

// Gone reports the end of a channel and its state.
type Gone struct {
	Channel uint64 `json:"channel"`
	State   string `json:"state"`
}

// Send writes one message, with descriptors, as one packet.
func Send(conn *net.UnixConn, message any, fds ...int) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = syscall.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(text, rights, nil)
	return err
}

// Receive reads one packet into message. The caller owns the descriptors, which are all close-on-exec.
func Receive(conn *net.UnixConn, message any) ([]int, error) {
	text := make([]byte, maxPacketBytes+1)
	control := make([]byte, syscall.CmsgSpace(4*maxDescriptors))
	n, c, flags, _, err := conn.ReadMsgUnix(text, control)
	if err != nil {
		return nil, err
	}
	if n == 0 && c == 0 {
		return nil, net.ErrClosed // the end of a seqpacket socket is an empty packet
	}
	fds, err := descriptors(control[:c])
	if err == nil && (flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 || n > maxPacketBytes) {
		err = errors.New("the node's message is longer than 4096 bytes or has more than 3 descriptors")
	}
	if err == nil {
		err = json.Unmarshal(text[:n], message)
	}
	if in, ok := message.(*NodeMessage); err == nil && ok && in.knownFields() > 1 {
		err = errors.New("two messages in one packet")
	}
	if err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("dispatch: %w", err)
	}
	return fds, nil
}

func descriptors(control []byte) (fds []int, err error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for k := range messages {
		if got, err := syscall.ParseUnixRights(&messages[k]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}
