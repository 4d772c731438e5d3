//! The end of connections whose edge was removed, over real instances.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use nearpath_kernel::bpf::AddressEdge;
use nearpath_kernel::namespace::run_in_netns;
use nearpath_kernel::sandbox::LaunchedInstance;
use nearpath_testkit::need_support;
use nearpath_types::Eip;

use crate::fixture::{GATEWAY, kill};
use crate::virtual_switch::{CALLER, DECLARED, SwitchLab, UNDECLARED, virtual_address};

/// Echoes over TCP and UDP on port 7000, and runs the programs that it gets on port 7009.
const AGENT: &str = "
import ctypes, errno, os, socket, threading, traceback
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('', 7000))
def datagrams():
    while True:
        try:
            data, peer = udp.recvfrom(2000); udp.sendto(data, peer)
        except OSError: pass
threading.Thread(target=datagrams, daemon=True).start()
def echo(one):
    while data := one.recv(65536): one.sendall(data)
def accept_all(listener):
    while True:
        one, _ = listener.accept()
        threading.Thread(target=echo, args=(one,), daemon=True).start()
threading.Thread(target=accept_all, args=(socket.create_server(('', 7000)),), daemon=True).start()

def connect(address, kind=socket.SOCK_STREAM, port=7000, local=None):
    s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, kind)
    s.settimeout(20)
    if local:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); s.bind(('', local))
    s.connect((address, port))
    return s
def exchange(s):
    s.sendall(b'x')
    return 'alive' if s.recv(1) else 'EOF'
def state(act, s):
    try: return act(s)
    except OSError as e: return errno.errorcode.get(e.errno, str(e))
def connected(s): s.getpeername(); return 'alive'
def listening(s): return 'alive' if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else 'closed'
class Busy:
    def __init__(self, s):
        self.rounds, self.error = 0, None
        self.changed = threading.Condition()
        threading.Thread(target=self.run, args=(s,), daemon=True).start()
    def run(self, s):
        try:
            while True:
                s.sendall(b'x' * 10000); left = 10000
                while left: left -= len(s.recv(left))
                with self.changed: self.rounds += 1; self.changed.notify_all()
        except OSError as e:
            with self.changed: self.error = errno.errorcode[e.errno]; self.changed.notify_all()
    def look(self):
        with self.changed:
            before = self.rounds
            self.changed.wait_for(lambda: self.error or self.rounds > before, 20)
            return self.error or 'alive'
class Child:
    def __init__(self, s):
        (ours, self.ask), (self.answer, theirs) = os.pipe(), os.pipe()
        if not os.fork():
            client.close()
            while os.read(ours, 1): os.write(theirs, state(exchange, s).encode())
        s.close()
    def look(self): os.write(self.ask, b'?'); return os.read(self.answer, 100).decode()
flows = {}
def states():
    act = lambda s: s.look() if hasattr(s, 'look') else exchange(s)
    return ' '.join(name + '=' + state(*(s if isinstance(s, tuple) else (act, s))) for name, s in flows.items())

control = socket.create_server(('', 7009))
print('ready', flush=True)
while True:
    client, _ = control.accept()
    program = b''
    while data := client.recv(65536): program += data
    result = ''
    try: exec(program.decode(), globals())
    except OSError as e: result = errno.errorcode.get(e.errno) or traceback.format_exc()
    except Exception: result = traceback.format_exc()
    client.sendall(str(result).encode()); client.close()
";

/// Opens every kind of flow to `CALLEE`, and others that must survive: to `OTHER`, inside, and from `CALLEE`.
const OPEN_FLOWS: &str = "
dgram = socket.SOCK_DGRAM
flows = {
    'tcp': connect(CALLEE), 'tcp-mapped': connect('::ffff:' + CALLEE), 'tcp-ula': connect(ULA), 'tcp-eip': connect(EIP),
    'udp': connect(CALLEE, dgram), 'udp-mapped': connect('::ffff:' + CALLEE, dgram), 'udp-ula': connect(ULA, dgram),
    'busy': Busy(connect(CALLEE)), 'child': Child(connect(CALLEE)),
    'other-tcp': connect(OTHER), 'other-udp': connect(OTHER, dgram), 'other-busy': Busy(connect(OTHER)),
    'inside': connect('127.0.0.1'), 'inside-udp': connect('127.0.0.1', dgram),
}
for number in range(5): flows['udp-shared-' + str(number)] = connected, connect(CALLEE, dgram, local=7100)
# Its flow is the one of the last datagram, to another function.
flows['udp-moved'] = connected, connect(CALLEE, dgram)
flows['udp-moved'][1].sendto(b'x', (OTHER, 7000))
# A socket with a flow that has no connection any more.
stale = connect(CALLEE)
ctypes.CDLL(None).connect(stale.fileno(), bytes(16), 16)
stale.bind(('', 7003)); stale.listen()
flows['listener'] = listening, stale
unconnected = socket.socket(socket.AF_INET, dgram); unconnected.settimeout(20)
unconnected.bind(('', 7004)); unconnected.sendto(b'x', (CALLEE, 7000))
flows['unconnected'] = (lambda s: s.getsockname() and 'alive'), unconnected
result = unconnected.recv(1).decode()
";

/// Flows of `OPEN_FLOWS` over the edge to `CALLEE`.
const FLOWS_OF_EDGE: [&str; 15] = [
    "busy",
    "child",
    "tcp",
    "tcp-eip",
    "tcp-mapped",
    "tcp-ula",
    "udp",
    "udp-mapped",
    "udp-moved",
    "udp-shared-0",
    "udp-shared-1",
    "udp-shared-2",
    "udp-shared-3",
    "udp-shared-4",
    "udp-ula",
];

/// Instances of a caller and two callees, with edges to both, and one back from the first.
pub(crate) struct CutLab {
    pub(crate) instances: BTreeMap<Ipv4Addr, (LaunchedInstance, Eip)>,
    pub(crate) lab: SwitchLab,
}

impl CutLab {
    fn create() -> io::Result<Self> {
        Self::create_without(&[])
    }

    pub(crate) fn create_without(left_out: &[&str]) -> io::Result<Self> {
        let lab = SwitchLab::create(left_out)?;
        let mut instances = BTreeMap::new();
        for function in [CALLER, DECLARED, UNDECLARED] {
            let spec = lab.admit(lab.lab.python(AGENT), function);
            let (launched, line) = lab.lab.start(&spec);
            assert_eq!(line, "ready");
            let eip = spec.network.unwrap().eip;
            lab.switch.set_backends(function, &[eip])?;
            instances.insert(function, (launched, eip));
        }
        for (caller, callee) in [(CALLER, DECLARED), (CALLER, UNDECLARED), (DECLARED, CALLER)] {
            lab.switch.add_edge(AddressEdge { caller, callee })?;
        }
        Ok(Self { instances, lab })
    }

    /// Runs a program in the instance of a function. Returns what it assigns to `result`.
    pub(crate) fn run(&self, function: Ipv4Addr, program: &str) -> String {
        let at = SocketAddr::from((self.instances[&function].1.0, 7009));
        let limit = Duration::from_secs(30);
        let connect = || TcpStream::connect_timeout(&at, limit);
        let mut control = run_in_netns(&*self.lab.lab.hub, connect).unwrap();
        control.set_read_timeout(Some(limit)).unwrap();
        let addresses = format!(
            "CALLER, CALLEE, OTHER, ULA, EIP = '{CALLER}', '{DECLARED}', '{UNDECLARED}', '{}', '{}'\n",
            virtual_address(DECLARED).v6,
            self.instances.get(&DECLARED).map_or(GATEWAY, |one| one.1.0)
        );
        control.write_all((addresses + program).as_bytes()).unwrap();
        control.shutdown(Shutdown::Write).unwrap();
        let mut result = String::new();
        control
            .read_to_string(&mut result)
            .unwrap_or_else(|error| panic!("{error}: {program}"));
        result
    }

    /// Returns the states of an instance's flows.
    fn states(&self, function: Ipv4Addr) -> BTreeMap<String, String> {
        let states = self.run(function, "result = states()");
        let parts = states.split(' ').map(|part| part.split_once('='));
        parts
            .map(|part| part.unwrap_or_else(|| panic!("{states}")))
            .map(|(name, state)| (name.to_owned(), state.to_owned()))
            .collect()
    }

    /// Returns the names of an instance's flows that have ended.
    fn ended(&self, function: Ipv4Addr) -> Vec<String> {
        let states = self.states(function).into_iter();
        let ended = states.filter(|(_, state)| state != "alive");
        ended.map(|(name, _)| name).collect()
    }

    fn remove_edge(&self, caller: Ipv4Addr, callee: Ipv4Addr) {
        self.lab.switch.remove_edge(AddressEdge { caller, callee });
    }

    /// Cuts the flows of a function's instance. Returns how many.
    fn cut(&self, function: Ipv4Addr) -> usize {
        let eip = self.instances[&function].1;
        let netns = self.open_netns(function);
        self.lab.switch.cut_undeclared_flows(netns, eip).unwrap()
    }

    pub(crate) fn open_netns(&self, function: Ipv4Addr) -> File {
        let pid = self.instances[&function].0.pid;
        File::open(format!("/proc/{pid}/ns/net")).unwrap()
    }

    pub(crate) fn kill_all(self) {
        let instances = self.instances.into_values();
        instances.for_each(|(launched, _)| drop(kill(launched)));
    }
}

#[test]
fn flows_of_a_removed_edge_are_cut_and_no_others() {
    let lab = need_support!(CutLab::create());
    assert_eq!(lab.run(CALLER, OPEN_FLOWS), "x");
    // The callee's own connection, which the caller has accepted.
    let call_back =
        "flows = {'back': connect(CALLER), 'back-udp': connect(CALLER, socket.SOCK_DGRAM)}";
    assert_eq!(lab.run(DECLARED, call_back), "");
    let none = Vec::<String>::new();
    assert_eq!(lab.cut(CALLER), 0, "each flow has its edge");
    lab.remove_edge(CALLER, DECLARED);
    // Without the cut, the connections go on. The kernel asks the programs for each mapped datagram.
    assert_eq!(lab.ended(CALLER), ["udp-mapped", "udp-ula"]);
    assert_eq!(lab.ended(DECLARED), none);
    assert_eq!(lab.cut(CALLER), FLOWS_OF_EDGE.len());
    assert_eq!(lab.cut(DECLARED), 0, "its edge is declared");
    assert_eq!(lab.ended(CALLER), FLOWS_OF_EDGE);
    assert_eq!(lab.ended(DECLARED), none);
    assert_eq!(lab.cut(CALLER), 0, "nothing is left");
    assert_eq!(lab.lab.switch.cut_flows(), FLOWS_OF_EDGE.len() as u64);
    lab.kill_all();
}

#[test]
fn holders_and_peers_of_cut_connections_get_errors() {
    let lab = need_support!(CutLab::create());
    let open =
        "flows = {'idle': connect(CALLEE, port=7010), 'udp': connect(CALLEE, socket.SOCK_DGRAM)}";
    let listen = "listener = socket.create_server(('', 7010))";
    assert_eq!(lab.run(DECLARED, listen), "");
    assert_eq!(lab.run(CALLER, open), "");
    assert_eq!(
        lab.run(DECLARED, "flows['accepted'], _ = listener.accept()"),
        ""
    );
    lab.remove_edge(CALLER, DECLARED);
    assert_eq!(lab.cut(CALLER), 2, "{:?}", lab.states(CALLER));
    let states = lab.states(CALLER);
    assert_eq!(states["idle"], "ECONNABORTED");
    assert_eq!(states["udp"], "EDESTADDRREQ", "it has no peer any more");
    assert_eq!(lab.states(DECLARED)["accepted"], "ECONNRESET");
    lab.kill_all();
}

#[test]
fn answers_end_with_the_edge_of_their_question() {
    let lab = need_support!(CutLab::create());
    // The callee answers from a connected socket, and from one that is not.
    let bind = "
connected_one = socket.socket(type=socket.SOCK_DGRAM); connected_one.bind(('', 7011))
plain = socket.socket(type=socket.SOCK_DGRAM); plain.bind(('', 7012))
";
    let ask = "
one = socket.socket(type=socket.SOCK_DGRAM); one.settimeout(20); one.bind(('', 7013))
for port in 7011, 7012: one.sendto(b'x', (CALLEE, port))
";
    let answer = "
flows = {}
for s in connected_one, plain: s.settimeout(20)
_, peer = connected_one.recvfrom(1); connected_one.connect(peer); connected_one.send(b'x')
_, peer = plain.recvfrom(1); plain.sendto(b'x', peer)
flows['answer'] = connected, connected_one
";
    lab.remove_edge(DECLARED, CALLER);
    assert_eq!(lab.run(DECLARED, bind), "");
    assert_eq!(lab.run(CALLER, ask), "");
    assert_eq!(lab.run(DECLARED, answer), "");
    assert_eq!(
        lab.run(CALLER, "result = (one.recv(1) + one.recv(1)).decode()"),
        "xx"
    );
    assert_eq!(lab.cut(DECLARED), 0, "it answers over a declared edge");
    lab.remove_edge(CALLER, DECLARED);
    assert_eq!(lab.run(DECLARED, "plain.sendto(b'x', peer)"), "EPERM");
    assert_eq!(lab.states(DECLARED)["answer"], "alive");
    assert_eq!(lab.cut(DECLARED), 1);
    assert_eq!(lab.ended(DECLARED), ["answer"]);
    lab.kill_all();
}

#[test]
fn datagram_sockets_lose_an_ended_peer_and_connect_again() {
    let mut lab = need_support!(CutLab::create());
    // An edge back has no part in it.
    lab.remove_edge(DECLARED, CALLER);
    let open = "
dgram = socket.SOCK_DGRAM
flows = {'udp': connect(CALLEE, dgram), 'udp-ula': connect(ULA, dgram), 'udp-eip': connect(EIP, dgram),
    'other': connect(OTHER, dgram), 'node': (connected, connect('10.62.0.1', dgram))}
result = states()
";
    let alive = "udp=alive udp-ula=alive udp-eip=alive other=alive node=alive";
    assert_eq!(lab.run(CALLER, open), alive);
    assert_eq!(lab.cut(CALLER), 0, "all instances live");
    let (ended, eip) = lab.instances.remove(&DECLARED).unwrap();
    let uid = user_of(ended.pid);
    kill(ended);
    lab.lab.switch.remove_instance(uid, eip);
    assert_eq!(lab.cut(CALLER), 3);
    let states = lab.run(CALLER, "result = states()");
    let lost = "udp=EDESTADDRREQ udp-ula=EDESTADDRREQ udp-eip=EDESTADDRREQ other=alive node=alive";
    assert_eq!(states, lost);
    // A new instance of the callee: the same sockets connect to it.
    let spec = lab.lab.admit(lab.lab.lab.python(AGENT), DECLARED);
    let (launched, line) = lab.lab.lab.start(&spec);
    assert_eq!(line, "ready");
    let eip = spec.network.unwrap().eip;
    lab.lab.switch.set_backends(DECLARED, &[eip]).unwrap();
    lab.instances.insert(DECLARED, (launched, eip));
    let again = "
for name, address in ('udp', CALLEE), ('udp-ula', ULA):
    error = flows[name].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    assert error == errno.ECONNABORTED, error
    flows[name].connect((address, 7000))
del flows['udp-eip']
result = states()
";
    let alive = "udp=alive udp-ula=alive other=alive node=alive";
    assert_eq!(lab.run(CALLER, again), alive);
    lab.kill_all();
}

/// Servers try again after EAGAIN, for ever: a forgotten peer must not look like a full queue.
#[test]
fn answers_to_forgotten_peers_fail_for_good() {
    let lab = need_support!(CutLab::create());
    lab.remove_edge(DECLARED, CALLER);
    let bind = "
served, peers = socket.socket(type=socket.SOCK_DGRAM), []
served.bind(('', 7014)); served.settimeout(20)";
    assert_eq!(lab.run(DECLARED, bind), "");
    // More peers than a socket has slots, in parts that fit into its queue.
    for part in 0..16 {
        let ask = format!(
            "for port in range({0}, {0} + 100):
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.bind(('', port)); one.sendto(b'x', (CALLEE, 7014))",
            20_000 + 100 * part
        );
        assert_eq!(lab.run(CALLER, &ask), "");
        let take = "peers += [served.recvfrom(1)[1] for _ in range(100)]";
        assert_eq!(lab.run(DECLARED, take), "");
    }
    let answer = "
outcomes = {state(lambda s: served.sendto(b'x', peer) and 'sent', None) for peer in peers}
result = ' '.join(sorted(outcomes))";
    assert_eq!(lab.run(DECLARED, answer), "EHOSTUNREACH sent");
    lab.kill_all();
}

/// Connects as fast as possible, and keeps the last sockets. Each thread ends when it is denied.
const CONNECT_ALWAYS: &str = "
held, threads = [], []
def connect_always(kind):
    try:
        while True:
            held.append(connect(CALLEE, kind))
            if len(held) > 60: held.pop(0).close()
    except OSError as e: assert e.errno == errno.EPERM
for kind in [socket.SOCK_STREAM, socket.SOCK_DGRAM] * 3:
    threads.append(threading.Thread(target=connect_always, args=(kind,), daemon=True))
    threads[-1].start()
";

#[test]
fn a_connect_during_the_removal_does_not_survive_later_checks() {
    let lab = need_support!(CutLab::create());
    for _ in 0..20 {
        let edge = AddressEdge {
            caller: CALLER,
            callee: DECLARED,
        };
        lab.lab.switch.add_edge(edge).unwrap();
        assert_eq!(lab.run(CALLER, CONNECT_ALWAYS), "");
        lab.remove_edge(CALLER, DECLARED);
        // This check may miss a socket that the kernel does not list yet.
        lab.cut(CALLER);
        // A thread that is denied has no connect under way.
        let join = "for thread in threads: thread.join()\nresult = len(held) > 0";
        assert_eq!(lab.run(CALLER, join), "True");
        lab.cut(CALLER);
        let open = "result = [state(connected, s) for s in held].count('alive')";
        assert_eq!(lab.run(CALLER, open), "0");
    }
    lab.kill_all();
}

#[test]
fn calls_by_name_over_http_are_cut() {
    let lab = need_support!(CutLab::create());
    let (launched, eip) = &lab.instances[&CALLER];
    // Each instance has the user id of its lab; its gateway is a listener here.
    let uid = user_of(launched.pid);
    lab.lab
        .switch
        .admit_instance((uid, *eip), CALLER, true)
        .unwrap();
    let open = "
threading.Thread(target=accept_all, args=(socket.create_server(('127.0.0.2', 8080)),), daemon=True).start()
flows = {'cut': connect(CALLEE, port=80), 'other': connect(OTHER, port=80), 'gateway': connect('127.0.0.2', port=8080)}
";
    assert_eq!(lab.run(CALLER, open), "");
    lab.remove_edge(CALLER, DECLARED);
    assert_eq!(lab.ended(CALLER), Vec::<String>::new());
    assert_eq!(lab.cut(CALLER), 1);
    assert_eq!(lab.ended(CALLER), ["cut"]);
    lab.kill_all();
}

fn user_of(pid: u32) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).unwrap().uid()
}
