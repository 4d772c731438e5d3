// Package fakenode simulates the node of one security domain in tests. It creates pool, wakeup cells and channels, and sends the welcome.
// It opens the declared edges, and frees the slots of dead endpoints. It implements only the node's part of contract/dispatch.md.
package fakenode

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/memory"
)

// Config describes the domain.
type Config struct {
	// Dir holds the sockets.
	Dir string
	// Edges are the declared ones, caller and callee.
	Edges [][2]string
	// Terms of edges: aliases, topics, events only; by caller and callee.
	Terms map[[2]string]endpoint.Peer
	// Sizes of the pool's classes; nil: some of each.
	Sizes []memory.ClassSize
	// Capacity of a ring; 0: 256.
	Capacity uint32
	// MaxHeldBytes of each endpoint; 0: the whole pool.
	MaxHeldBytes uint64
}

// Node is a running fake node.
type Node struct {
	config Config
	Pool   *memory.Pool
	file   *os.File

	mu       sync.Mutex
	members  map[uint16]*Member
	channels map[uint64]*edge
	last     uint64
	changed  *sync.Cond
	closers  []func()
}

// Member is the node's record of an endpoint.
type Member struct {
	Number     uint16
	Function   string
	Instance   uint64
	conn       *net.UnixConn
	wakeupFile *os.File
	wakeupCell *memory.WakeupCell
	event      int
	Hello      endpoint.Hello
	ready      bool
	dead       bool
}

type edge struct {
	number         uint64
	caller, callee *Member
	channel        *memory.Channel
	drained        map[uint16]bool
}

var defaultSizes = []memory.ClassSize{{Size: 256, Count: 2048}, {Size: 4096, Count: 512}, {Size: 65536, Count: 64}, {Size: 1 << 20, Count: 8}}

// Start makes the pool.
func Start(config Config) (*Node, error) {
	if config.Sizes == nil {
		config.Sizes = defaultSizes
	}
	if config.Capacity == 0 {
		config.Capacity = 256
	}
	pool, file, err := memory.CreatePool(config.Sizes)
	if err != nil {
		return nil, err
	}
	if config.MaxHeldBytes == 0 {
		config.MaxHeldBytes = pool.Geometry.Bytes
	}
	n := &Node{config: config, Pool: pool, file: file, members: map[uint16]*Member{}, channels: map[uint64]*edge{}}
	n.changed = sync.NewCond(&n.mu)
	return n, nil
}

// Listen makes the socket of one instance and returns its path.
func (n *Node) Listen(function string, instance uint64) (string, error) {
	path := filepath.Join(n.config.Dir, fmt.Sprintf("%d.dispatch", instance))
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return "", err
	}
	n.mu.Lock()
	n.closers = append(n.closers, func() { _ = listener.Close() })
	n.mu.Unlock()
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			go n.serve(conn, function, instance)
		}
	}()
	return path, nil
}

// Stop closes the sockets.
func (n *Node) Stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, stop := range n.closers {
		stop()
	}
	for _, m := range n.members {
		_ = m.conn.Close()
	}
}

func (n *Node) serve(conn *net.UnixConn, function string, instance uint64) {
	defer conn.Close()
	var m *Member
	for {
		var out endpoint.NodeRequest
		if _, err := endpoint.Receive(conn, &out); err != nil {
			break
		}
		switch {
		case out.Hello != nil && m == nil:
			made, err := n.sendWelcome(conn, function, instance, out.Hello)
			if err != nil {
				return
			}
			m = made
		case m != nil && out.Ready != nil:
			n.update(func() { m.ready = true })
		case m != nil && out.ChannelDrained != nil:
			n.update(func() { n.markDrained(m, out.ChannelDrained.Channel) })
		}
	}
	if m != nil {
		n.removeMember(m)
	}
}

func (n *Node) sendWelcome(conn *net.UnixConn, function string, instance uint64, hello *endpoint.Hello) (*Member, error) {
	event, _, errno := syscall.Syscall(syscall.SYS_EVENTFD2, 0, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if errno != 0 {
		return nil, errno
	}
	file, err := memory.CreateWakeupCell(true)
	if err != nil {
		return nil, err
	}
	wakeupCell, err := memory.OpenWakeupCell(int(file.Fd()), int(event))
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	m := &Member{
		Number: uint16(n.last), Function: function, Instance: instance, conn: conn, wakeupFile: file, wakeupCell: wakeupCell,
		event: int(event), Hello: *hello,
	}
	n.members[m.Number] = m
	err = endpoint.Send(conn, endpoint.NodeMessage{Welcome: &endpoint.Welcome{
		Domain: "test", Endpoint: m.Number, Function: function, Instance: instance, Pool: n.Pool.Geometry.Bytes,
		MaxHeldBytes: n.config.MaxHeldBytes, Capacity: n.config.Capacity,
	}}, int(n.file.Fd()), int(file.Fd()), int(event))
	if err == nil {
		n.connect()
		n.changed.Broadcast()
	}
	return m, err
}

func (n *Node) update(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	n.connect()
	n.changed.Broadcast()
}

// connect opens the declared channels that are missing.
func (n *Node) connect() {
	for _, pair := range n.config.Edges {
		for _, caller := range n.members {
			for _, callee := range n.members {
				good := !caller.dead && !callee.dead && callee.ready && caller.Function == pair[0] && callee.Function == pair[1]
				if good && !n.connected(caller, callee) {
					n.open(caller, callee)
				}
			}
		}
	}
}

func (n *Node) connected(caller, callee *Member) bool {
	for _, e := range n.channels {
		if e.caller == caller && e.callee == callee {
			return true
		}
	}
	return false
}

func (n *Node) open(caller, callee *Member) {
	channel, file, err := memory.CreateChannel(n.config.Capacity)
	if err != nil {
		return
	}
	defer file.Close()
	number := uint64(len(n.channels) + 1)
	n.channels[number] = &edge{number, caller, callee, channel, map[uint16]bool{}}
	announce := func(to, peer *Member, side string) {
		announcement := n.config.Terms[[2]string{caller.Function, callee.Function}]
		announcement.Channel, announcement.Side, announcement.Endpoint, announcement.Capacity = number, side, peer.Number, n.config.Capacity
		announcement.Function, announcement.Instance = peer.Function, peer.Instance
		_ = endpoint.Send(to.conn, endpoint.NodeMessage{Peer: &announcement}, int(file.Fd()), int(peer.wakeupFile.Fd()), peer.event)
	}
	announce(callee, caller, "callee")
	announce(caller, callee, "caller")
}

func (n *Node) markDrained(m *Member, channel uint64) {
	if e := n.channels[channel]; e != nil {
		e.drained[m.Number] = true
	}
}

// Withdraw withdraws every channel to an instance and notifies both sides.
func (n *Node) Withdraw(instance uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.channels {
		if e.callee.Instance == instance {
			n.closeEdge(e, memory.Withdrawn, "withdrawn", e.caller, e.callee)
		}
	}
}

func (n *Node) closeEdge(e *edge, state memory.ChannelState, word string, receivers ...*Member) {
	e.channel.Close(state)
	for _, m := range receivers {
		m.wakeupCell.Wake()
		_ = endpoint.Send(m.conn, endpoint.NodeMessage{PeerGone: &endpoint.Gone{Channel: e.number, State: word}})
	}
}

// removeMember does what the contract requires after a death.
func (n *Node) removeMember(m *Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m.dead = true
	for _, e := range n.channels {
		switch m {
		case e.caller:
			n.closeEdge(e, memory.CallerDead, "dead", e.callee)
		case e.callee:
			n.closeEdge(e, memory.CalleeDead, "dead", e.caller)
		}
	}
	n.sweep()
	n.changed.Broadcast()
}

func (n *Node) sweep() {
	alive := func(number memory.EndpointID) bool { m := n.members[number]; return m != nil && !m.dead }
	n.Pool.Sweep(alive, func(from, to memory.EndpointID, s memory.Slot, generation uint32) bool {
		for _, e := range n.channels {
			if e.caller.Number == from && e.callee.Number == to && e.channel.Holds(memory.Caller, s, generation) ||
				e.callee.Number == from && e.caller.Number == to && e.channel.Holds(memory.Callee, s, generation) {
				return true
			}
		}
		return false
	})
}

// CloseConnections closes the connections of a function's endpoints, as a restarting node does; their sockets still accept.
func (n *Node) CloseConnections(function string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.members {
		if m.Function == function {
			_ = m.conn.Close()
		}
	}
}

// Sweep frees the slots that dead endpoints hold.
func (n *Node) Sweep() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sweep()
}

// Await waits until the condition holds for the node's view.
func (n *Node) Await(holds func(*View) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for !holds(&View{n}) {
		n.changed.Wait()
	}
}

// View is the node's state for conditions of Await.
type View struct{ node *Node }

// Drained reports whether every living side of every closed channel has drained it.
func (v *View) Drained() bool {
	for _, e := range v.node.channels {
		for _, m := range []*Member{e.caller, e.callee} {
			if e.channel.State() != memory.Open && !m.dead && !e.drained[m.Number] {
				return false
			}
		}
	}
	return true
}

// Channels is the number of opened channels.
func (v *View) Channels() int { return len(v.node.channels) }

// Alive returns the living endpoints of a function.
func (v *View) Alive(function string) (alive []*Member) {
	for _, m := range v.node.members {
		if m.Function == function && !m.dead {
			alive = append(alive, m)
		}
	}
	return alive
}

// Dead is the number of dead endpoints.
func (v *View) Dead() (dead int) {
	for _, m := range v.node.members {
		if m.dead {
			dead++
		}
	}
	return dead
}

// Counted returns the counters of both sides of the channel from one function to another.
func (n *Node) Counted(caller, callee string) (out [2][16]uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.channels {
		if e.caller.Function == caller && e.callee.Function == callee {
			out[0], out[1] = e.channel.Counted(memory.Caller), e.channel.Counted(memory.Callee)
		}
	}
	return out
}
