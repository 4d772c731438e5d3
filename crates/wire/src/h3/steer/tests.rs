use proptest::prelude::*;

use super::program::op;
use super::*;

/// Runs a program as the kernel would, as far as it is used here; a load beyond the packet returns 0, as there.
fn run(program: &[Instruction], packet: &[u8]) -> u32 {
    let (mut a, mut x, mut at) = (0_u32, 0, 0);
    loop {
        let (code, yes, no, k) = program[at];
        at += 1;
        let jump = |taken: bool| usize::from(if taken { yes } else { no });
        match code {
            op::LOAD_BYTE => match packet.get(k as usize) {
                Some(byte) => a = u32::from(*byte),
                None => return 0,
            },
            op::LOAD_WORD => match packet.get(k as usize..k as usize + 4) {
                Some(word) => a = u32::from_be_bytes(word.try_into().unwrap()),
                None => return 0,
            },
            op::ADD => a = a.wrapping_add(k),
            op::MULTIPLY => a = a.wrapping_mul(k),
            op::AND => a &= k,
            op::SHIFT_RIGHT => a >>= k,
            op::MODULO => a %= k,
            op::COPY_TO_X => x = a,
            op::X => a = x,
            op::JUMP => at += k as usize,
            op::EQUAL => at += jump(a == k),
            op::ANY_BIT => at += jump(a & k != 0),
            op::RETURN_A => return a,
            other => panic!("{other:#x}"),
        }
    }
}

/// Processes that came one after the other on one port; what each began with.
fn line_of(secret: u32, threads: &[usize]) -> Vec<Steering> {
    let mut line = vec![Steering::with(secret, threads[0])];
    for &threads in &threads[1..] {
        line.push(line.last().unwrap().next(&[], threads).unwrap());
    }
    line
}

fn short(flags: u8, id: &[u8]) -> Vec<u8> {
    [&[flags & 0x7f][..], id, &[7; 16]].concat()
}

fn long(flags: u8, kind: u8, id: &[u8]) -> Vec<u8> {
    [&[flags & 0x4f | 0x80 | kind << 4, 0, 0, 0, 1, 8][..], id, &[7; 16]].concat()
}

proptest! {
    #[test]
    fn ids_lead_to_their_process_and_thread_also_when_others_have_come(
        secret: u32, line in prop::collection::vec(1_usize..70, 1..=PARTS), one: usize, thread: usize, random: [u8; LENGTH], flags: u8,
    ) {
        let line = line_of(secret, &line);
        let (one, newest) = (line[one % line.len()], line.last().unwrap());
        let thread = thread % one.threads();
        let id = one.id(thread, random);
        let socket = one.parts[one.mine].sockets().start + thread;
        prop_assert_eq!(newest.socket_of(*id.first_chunk().unwrap()), socket);
        prop_assert_eq!(run(&newest.program(), &short(flags, &id)), socket as u32);
        prop_assert_eq!(run(&newest.program(), &long(flags, 2, &id)), socket as u32);
    }

    #[test]
    fn first_packets_go_to_the_newest_process_and_there_where_its_id_leads(
        secret: u32, line in prop::collection::vec(1_usize..70, 1..=PARTS), kind in 0_u8..2, theirs: [u8; 8], random: [u8; LENGTH],
    ) {
        let newest = *line_of(secret, &line).last().unwrap();
        let socket = run(&newest.program(), &long(0, kind, &theirs)) as usize;
        let own = newest.parts[newest.mine].sockets();
        prop_assert!(own.contains(&socket));
        let id = newest.id(socket - own.start, random);
        prop_assert_eq!(run(&newest.program(), &long(0, kind, &id)), socket as u32, "its later packets bear the id that it was given");
    }

    #[test]
    fn any_packet_goes_to_a_socket_that_is_there(
        secret: u32, line in prop::collection::vec(1_usize..70, 1..=PARTS), packet: Vec<u8>,
    ) {
        let newest = *line_of(secret, &line).last().unwrap();
        prop_assert!((run(&newest.program(), &packet) as usize) < newest.all());
    }

    #[test]
    fn parts_never_overlap_and_only_the_ended_are_taken_over(
        secret: u32, first in 1_usize..9, steps in prop::collection::vec((1_usize..9, any::<u8>()), 0..40),
    ) {
        let mut now = Steering::with(secret, first);
        for (threads, ended) in steps {
            let ended: Vec<_> = (0..PARTS).filter(|at| ended >> at & 1 == 1).collect();
            let Some(next) = now.next(&ended, threads) else {
                prop_assert_eq!(now.parts().count(), PARTS);
                continue;
            };
            prop_assert!(next.mine != now.mine && next.threads() <= threads);
            prop_assert!(now.parts[next.mine].threads == 0 || ended.contains(&next.mine));
            let mut sockets: Vec<_> = next.parts().flat_map(|(_, part)| part.sockets()).collect();
            sockets.sort_unstable();
            prop_assert_eq!(sockets, (0..next.all()).collect::<Vec<_>>(), "without gaps: the kernel numbers them so");
            prop_assert_eq!(Steering::heard(&next.told()), Some(next));
            now = next;
        }
    }

    #[test]
    fn what_is_told_is_not_believed_blindly(secret: u32, mine in 0_usize..20, parts: [(u32, u32); PARTS]) {
        if let Some(steering) = Steering::heard(&Told { secret, mine, parts }) {
            prop_assert!(steering.threads() > 0);
            let _ = (steering.program(), steering.all(), steering.next(&[0], 3));
        }
    }
}

#[test]
fn one_after_the_other_take_two_parts_in_turns() {
    let mut now = Steering::with(1, 2);
    for turn in 0..20 {
        let before = (now.mine + 1) % 2;
        now = now.next(&[before], 2).unwrap();
        assert_eq!((now.mine, now.all()), (before, 4), "turn {turn}");
    }
}

#[test]
fn ids_are_spread_over_all_octets() {
    let mut generator = Steering::new(3).unwrap().generator(1);
    let ids: Vec<_> = (0..2_000).map(|_| generator.generate_cid()).collect();
    for at in 0..LENGTH {
        let seen: std::collections::HashSet<u8> = ids.iter().map(|id| id[at]).collect();
        assert!(seen.len() > 200, "octet {at} has {} values", seen.len());
    }
}
