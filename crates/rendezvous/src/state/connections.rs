//! Lines: who comes, who goes.

use std::sync::Arc;

use super::types::{Name, Present, Timer};
use super::{Action, Chance, Desk, LineNo, Moment};
use nearpath_p2p::message::{Bye, Hex, Told};
use nearpath_p2p::ticket::Ticket;

impl<C: Chance> Desk<C> {
    /// A worker comes with a line. A worker has one line: the newest, since the older may be one whose end nobody has
    /// heard of. What was kept for the worker follows, and the calls that waited for it.
    pub fn arrive(&mut self, line: LineNo, ticket: &Ticket, now: Moment) -> Vec<Action> {
        let name = Arc::new(Name { job: ticket.job.clone(), id: ticket.you.clone() });
        if let Some(older) = self.line_of(&name) {
            self.counts.displaced += 1;
            self.close(older, Bye::Displaced);
        }
        if self.is_full(ticket) {
            self.actions.push(Action::Close(line, Bye::TooMany));
            return self.take();
        }
        self.counts.arrived += 1;
        self.enter(line, &name, ticket, now);
        self.hand_out(line, &name);
        self.answer_those_who_waited(&name, now);
        self.take()
    }

    /// A line has ended. Its calls that waited are forgotten; sessions are not.
    pub fn leave(&mut self, line: LineNo) {
        let Some(name) = self.lines.remove(&line) else { return };
        self.remove_from_office(&name, line);
        let Some(worker) = self.workers.get_mut(&name) else { return };
        if let Some(present) = worker.line.take() {
            self.timers.remove(&(present.until, Timer::Line(line)));
        }
        for number in std::mem::take(&mut worker.calls) {
            self.stop_waiting(number);
        }
        self.forget_if_done(&name);
    }

    /// Everybody is told that it is over; used once.
    pub fn close_all(&mut self) -> Vec<Action> {
        let lines: Vec<LineNo> = self.lines.keys().copied().collect();
        lines.into_iter().for_each(|line| self.close(line, Bye::Draining));
        self.take()
    }

    /// The ticket of a line has come to its end.
    pub(super) fn expire_line(&mut self, line: LineNo) {
        self.close(line, Bye::Expired);
    }

    pub(super) fn forget_if_done(&mut self, name: &Name) {
        if self.workers.get(name).is_some_and(super::Worker::is_forgotten) {
            self.workers.remove(name);
        }
    }

    fn close(&mut self, line: LineNo, why: Bye) {
        if self.lines.contains_key(&line) {
            self.actions.push(Action::Close(line, why));
            self.leave(line);
        }
    }

    fn is_full(&self, ticket: &Ticket) -> bool {
        let of_the_job = self.offices.get(&ticket.job).map_or(0, |office| office.lines);
        self.lines.len() >= self.limits.lines || of_the_job >= self.limits.lines_of_a_job
    }

    fn enter(&mut self, line: LineNo, name: &Arc<Name>, ticket: &Ticket, now: Moment) {
        let until = now.at + now.left(ticket.until);
        self.timers.insert((until, Timer::Line(line)));
        self.lines.insert(line, name.clone());
        let worker = self.workers.entry(name.clone()).or_default();
        worker.line = Some(Present { line, until, until_unix: ticket.until });
        let office = self.offices.entry(name.job.clone()).or_default();
        office.lines += 1;
        if ticket.leader {
            office.leader = Some(line);
        }
    }

    fn remove_from_office(&mut self, name: &Name, line: LineNo) {
        let Some(office) = self.offices.get_mut(&name.job) else { return };
        office.lines -= 1;
        office.leader = office.leader.filter(|leader| *leader != line);
        if office.lines == 0 {
            self.offices.remove(&name.job);
        }
    }

    /// What was said to the worker while it had no line, in the order in which it was said.
    fn hand_out(&mut self, line: LineNo, name: &Name) {
        let Some(worker) = self.workers.get(name) else { return };
        for id in &worker.sessions {
            let Some(meeting) = self.sessions.get_mut(id) else { continue };
            let Some(side) = meeting.side(name) else { continue };
            let session = Hex(*id);
            for (to, word) in std::mem::take(&mut meeting.kept) {
                if to == side {
                    self.actions.push(Action::Tell(line, Told::Tell { session, word }));
                } else {
                    meeting.kept.push_back((to, word));
                }
            }
        }
    }
}
