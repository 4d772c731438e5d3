//! Peers of handed-out sockets, as their functions see them.

use std::net::TcpListener as StdTcpListener;
use std::sync::mpsc;
use std::thread;

use nearpath_kernel::bpf::PeerNames;

use super::*;

/// The address by which the function knows the server.
const VISIBLE: Ipv4Addr = Ipv4Addr::new(10, 61, 0, 2);

/// Takes a warm socket to `server` behind a guard, gives it to `holder`, and keeps the pool until
/// `asked`.
fn give_warm_socket(
    server: SocketAddr,
    holder: &mpsc::Sender<std::net::TcpStream>,
    asked: &mpsc::Receiver<()>,
) -> io::Result<()> {
    let guard = SocketCgroupGuard::enter_current_thread()?;
    let names = PeerNames::attach(&guard)?;
    run_local(async {
        let pool = ConnectionPool::start();
        pool.enable_peer_names(names);
        let mut to = (*parse_destination(&format!("{server} protocol=tcp"), 1)).clone();
        to.visible_ip = VISIBLE.into();
        let to = Rc::new(to);
        pool.retain_destination(&to);
        let found = RefCell::new(None);
        eventually("a warm socket", async || {
            *found.borrow_mut() = pool.take_warm(&to);
            found.borrow().is_some()
        })
        .await;
        let lease = found.take().unwrap();
        assert_eq!(
            lease.stream.peer_addr().unwrap(),
            server,
            "the node sees it"
        );
        holder.send(lease.stream.into_std().unwrap()).unwrap();
        // Blocks the pool, which has nothing to do.
        let _ = asked.recv();
    });
    Ok(())
}

#[test]
fn a_handed_out_socket_shows_the_address_that_its_function_connected_to() {
    let server = StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = server.local_addr().unwrap();
    let ((holder, sockets), (asked, wait)) = (mpsc::channel(), mpsc::channel());
    let pool = thread::spawn(move || give_warm_socket(address, &holder, &wait));
    let seen = sockets.recv().map(|socket| socket.peer_addr().unwrap());
    drop(asked);
    match (pool.join().unwrap(), seen) {
        (Ok(()), seen) => assert_eq!(seen, Ok((VISIBLE, address.port()).into())),
        (Err(why), _) => nearpath_testkit::skip!("peer names are unavailable: {why}"),
    }
}
