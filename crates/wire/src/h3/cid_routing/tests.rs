use proptest::prelude::*;

use super::program::opcode;
use super::*;

/// Runs a program as the kernel would, as far as it is used here. A load beyond the packet returns
/// 0, as in the kernel.
fn run_program(program: &[BpfInstruction], packet: &[u8]) -> u32 {
    let (mut a, mut x, mut at) = (0_u32, 0, 0);
    loop {
        let (code, yes, no, k) = program[at];
        at += 1;
        let jump = |taken: bool| usize::from(if taken { yes } else { no });
        match code {
            opcode::LOAD_BYTE => match packet.get(k as usize) {
                Some(byte) => a = u32::from(*byte),
                None => return 0,
            },
            opcode::LOAD_WORD => match packet.get(k as usize..k as usize + 4) {
                Some(word) => a = u32::from_be_bytes(word.try_into().unwrap()),
                None => return 0,
            },
            opcode::ADD => a = a.wrapping_add(k),
            opcode::MULTIPLY => a = a.wrapping_mul(k),
            opcode::AND => a &= k,
            opcode::SHIFT_RIGHT => a >>= k,
            opcode::MODULO => a %= k,
            opcode::COPY_TO_X => x = a,
            opcode::COPY_FROM_X => a = x,
            opcode::JUMP => at += k as usize,
            opcode::EQUAL => at += jump(a == k),
            opcode::ANY_BIT => at += jump(a & k != 0),
            opcode::RETURN_A => return a,
            other => panic!("{other:#x}"),
        }
    }
}

/// Routings of processes that started one after the other on one port.
fn successive_routings(secret: u32, threads: &[usize]) -> Vec<CidRouting> {
    let mut routings = vec![CidRouting::with_secret(secret, threads[0])];
    for &threads in &threads[1..] {
        routings.push(routings.last().unwrap().next_process(&[], threads).unwrap());
    }
    routings
}

fn short_header_packet(flags: u8, id: &[u8]) -> Vec<u8> {
    [&[flags & 0x7f][..], id, &[7; 16]].concat()
}

fn long_header_packet(flags: u8, kind: u8, id: &[u8]) -> Vec<u8> {
    [
        &[flags & 0x4f | 0x80 | kind << 4, 0, 0, 0, 1, id.len() as u8][..],
        id,
        &[7; 16],
    ]
    .concat()
}

proptest! {
    #[test]
    fn ids_lead_to_their_process_and_thread_also_when_others_have_come(
        secret: u32, line in prop::collection::vec(1_usize..70, 1..=MAX_PARTS), one: usize, thread: usize, random: [u8; CID_BYTES], flags: u8,
    ) {
        let line = successive_routings(secret, &line);
        let (one, newest) = (line[one % line.len()], line.last().unwrap());
        let thread = thread % one.thread_count();
        let id = one.make_cid(thread, random);
        let socket = one.parts[one.own_part].socket_numbers().start + thread;
        prop_assert_eq!(newest.socket_for(*id.first_chunk().unwrap()), socket);
        prop_assert_eq!(run_program(&newest.bpf_program(), &short_header_packet(flags, &id)), socket as u32);
        prop_assert_eq!(run_program(&newest.bpf_program(), &long_header_packet(flags, 2, &id)), socket as u32);
    }

    #[test]
    fn first_packets_go_to_the_newest_process_and_there_where_its_id_leads(
        secret: u32, line in prop::collection::vec(1_usize..70, 1..=MAX_PARTS), kind in 0_u8..2, theirs: [u8; 8], random: [u8; CID_BYTES],
    ) {
        let newest = *successive_routings(secret, &line).last().unwrap();
        let socket = run_program(&newest.bpf_program(), &long_header_packet(0, kind, &theirs)) as usize;
        let own = newest.parts[newest.own_part].socket_numbers();
        prop_assert!(own.contains(&socket));
        let id = newest.make_cid(socket - own.start, random);
        prop_assert_eq!(run_program(&newest.bpf_program(), &long_header_packet(0, kind, &id)), socket as u32, "its later packets bear the id that it was given");
    }

    #[test]
    fn answers_go_to_the_process_that_dials_and_first_packets_of_peers_to_the_newest(
        secret: u32, line in prop::collection::vec(1_usize..70, 1..=MAX_PARTS), one: usize, thread: usize,
        random: [u8; CID_BYTES], theirs: [u8; 20], kind in 0_u8..3, flags: u8,
    ) {
        let line = successive_routings(secret, &line);
        let (one, newest) = (line[one % line.len()], line.last().unwrap().dialed_from());
        let thread = thread % one.thread_count();
        let id = one.make_cid(thread, random);
        let socket = one.parts[one.own_part].socket_numbers().start + thread;
        let program = newest.bpf_program();
        prop_assert_eq!(run_program(&program, &long_header_packet(flags, kind, &id)), socket as u32);
        prop_assert_eq!(run_program(&program, &short_header_packet(flags, &id)), socket as u32);
        let first = long_header_packet(flags, kind % 2, &theirs);
        prop_assert!(newest.parts[newest.own_part].socket_numbers().contains(&(run_program(&program, &first) as usize)));
    }

    #[test]
    fn any_packet_goes_to_a_socket_that_is_there(
        secret: u32, line in prop::collection::vec(1_usize..70, 1..=MAX_PARTS), packet: Vec<u8>, is_dialed_from: bool,
    ) {
        let newest = *successive_routings(secret, &line).last().unwrap();
        let newest = CidRouting { is_dialed_from, ..newest };
        prop_assert!((run_program(&newest.bpf_program(), &packet) as usize) < newest.socket_count());
    }

    #[test]
    fn parts_never_overlap_and_only_the_ended_are_taken_over(
        secret: u32, first in 1_usize..9, steps in prop::collection::vec((1_usize..9, any::<u8>()), 0..40),
    ) {
        let mut now = CidRouting::with_secret(secret, first);
        for (threads, ended) in steps {
            let ended: Vec<_> = (0..MAX_PARTS).filter(|at| ended >> at & 1 == 1).collect();
            let Some(next) = now.next_process(&ended, threads) else {
                prop_assert_eq!(now.parts().count(), MAX_PARTS);
                continue;
            };
            prop_assert!(next.own_part != now.own_part && next.thread_count() <= threads);
            prop_assert!(now.parts[next.own_part].threads == 0 || ended.contains(&next.own_part));
            let mut sockets: Vec<_> = next.parts().flat_map(|(_, part)| part.socket_numbers()).collect();
            sockets.sort_unstable();
            prop_assert_eq!(sockets, (0..next.socket_count()).collect::<Vec<_>>(), "without gaps: the kernel numbers them so");
            prop_assert_eq!(CidRouting::from_state(&next.to_state()), Some(next));
            now = next;
        }
    }

    #[test]
    fn what_is_told_is_not_believed_blindly(secret: u32, own_part in 0_usize..20, parts: [(u32, u32); MAX_PARTS]) {
        if let Some(steering) = CidRouting::from_state(&CidRoutingState { secret, own_part, parts }) {
            prop_assert!(steering.thread_count() > 0);
            let _ = (steering.bpf_program(), steering.socket_count(), steering.next_process(&[0], 3));
        }
    }
}

#[test]
fn successors_alternate_between_two_parts() {
    let mut now = CidRouting::with_secret(1, 2);
    for turn in 0..20 {
        let before = (now.own_part + 1) % 2;
        now = now.next_process(&[before], 2).unwrap();
        assert_eq!(
            (now.own_part, now.socket_count()),
            (before, 4),
            "turn {turn}"
        );
    }
}

#[test]
fn ids_are_spread_over_all_octets() {
    let mut generator = CidRouting::new(3).unwrap().cid_generator(1);
    let ids: Vec<_> = (0..2_000).map(|_| generator.generate_cid()).collect();
    for at in 0..CID_BYTES {
        let seen: std::collections::HashSet<u8> = ids.iter().map(|id| id[at]).collect();
        assert!(seen.len() > 200, "octet {at} has {} values", seen.len());
    }
}
