//! Answers what an instance asks about names: those that its function declared, and those below a declared one. The node asks for the latter itself
//! first, so that a name that does not exist is told and takes no address.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::egress::Host;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

use super::message::{Answer, LONGEST, Question};
use super::wildcard::{MOST, REST, is_below};
use crate::EgressInstance;
use crate::proxy::{Exit, PAUSE};

/// Names of one instance that are asked for at a time. Further questions wait in its socket.
const AT_A_TIME: usize = 16;

impl Exit {
    /// Until it is dropped.
    pub(crate) async fn answer_names(self: Rc<Self>, caller: Rc<EgressInstance>, socket: UdpSocket) {
        let (socket, at_a_time) = (Rc::new(socket), Arc::new(Semaphore::new(AT_A_TIME)));
        let mut packet = [0; LONGEST + 1];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut packet).await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let Some(question) = Question::read(&packet[..length]) else { continue };
            let Ok(turn) = Arc::clone(&at_a_time).acquire_owned().await else { return };
            let (exit, caller, socket) = (Rc::clone(&self), Rc::clone(&caller), Rc::clone(&socket));
            spawn_local(async move {
                let answer = exit.answer_name(&caller, &question).await;
                if let Some(answer) = question.answered(answer) {
                    let _ = socket.send_to(&answer, from).await; // who asked may have gone
                }
                drop(turn);
            });
        }
    }

    async fn answer_name(&self, caller: &Rc<EgressInstance>, question: &Question) -> Answer {
        let name = question.name.as_str();
        let given = |address| if question.of_address { Answer::Address(address) } else { Answer::Nothing };
        if let Some(stands) = caller.stand_in_for(name) {
            return given(stands);
        }
        if !caller.destinations.iter().any(|to| matches!(&to.egress.host, Host::Below(base) if is_below(name, base))) {
            self.notice(
                &caller.caller,
                "names",
                &format!("{name:?} was not found: it is not in the `egress` of {}", caller.caller.function),
            );
            return Answer::Unknown;
        }
        match self.keeper.leads_somewhere(name).await {
            Ok(()) if question.of_address => self.seat(caller, name),
            Ok(()) => Answer::Nothing,
            Err(error) => {
                self.notice(&caller.caller, "names", &format!("{name:?} was not found: {error}"));
                if is_passing(&error) { Answer::Later } else { Answer::Unknown }
            }
        }
    }

    fn seat(&self, caller: &Rc<EgressInstance>, name: &str) -> Answer {
        let seated = self.guests.borrow_mut().seat(caller, Instant::now(), name);
        let Some((seated, before)) = seated else {
            let minutes = REST.as_secs() / 60;
            let what =
                format!("{name:?} has no address: this instance used {MOST} other names within {minutes} minutes");
            self.notice(&caller.caller, "names", &what);
            return Answer::Later;
        };
        before.iter().for_each(|to| self.keeper.expect_no_more(to));
        if seated.new {
            self.doorway.add_alias(seated.address);
            if let Err(error) = self.doorway.allow_instance(caller.eip, seated.address) {
                self.notice(&caller.caller, "names", &format!("{name:?} is not reached: {error}"));
                return Answer::Later;
            }
        }
        Answer::Address(seated.address)
    }
}

/// Whether a name may be found a little later: the resolver tells this by its words alone (`gai_strerror`, EAI_AGAIN).
fn is_passing(error: &io::Error) -> bool {
    let text = error.to_string();
    text.contains("Temporary failure") || text.contains("Try again")
}
