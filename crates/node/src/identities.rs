//! Who instances are, for callers on other machines.
//!
//! The node asks once for each instance whose function is called that way, beside its start, and hands over what it is given through the instance's pipe; what it
//! says there is for the watchdog alone and opaque here. An instance has one name for its life, and its successor another.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use nearpath_types::policy::Transport;
use nearpath_types::{FunctionId, InstanceId};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Makes identities: the controller's authority, and whoever mints sessions.
pub trait Issuer: Send + Sync {
    /// Whether instances of a function that is called so need one.
    fn serves(&self, transport: Transport) -> bool;

    /// That of one instance, or in a sentence why there is none: callers then use HTTP. It comes beside the instance's start, which waits for it
    /// in the end.
    fn issue(&self, function: FunctionId, instance: InstanceId) -> BoxFuture<'static, Result<Identity, String>>;

    /// The instance of this name is gone: what was remembered of it can be forgotten.
    fn gone(&self, name: &str);
}

/// Who an instance is.
#[derive(Debug)]
pub struct Identity {
    /// What callers call it.
    pub name: Arc<str>,
    /// Frames for the watchdog: the first is there at once, others come when something changes.
    pub frames: mpsc::Receiver<Vec<u8>>,
}

/// The issuer, if there is one.
#[derive(Clone, Default)]
pub struct Identities(Option<Arc<dyn Issuer>>);

impl Identities {
    /// From this issuer.
    pub fn from(issuer: Arc<dyn Issuer>) -> Self {
        Self(Some(issuer))
    }

    /// Whether instances of a function that is called so are told who they are.
    pub(crate) fn serve(&self, transport: Transport) -> bool {
        self.0.as_ref().is_some_and(|issuer| issuer.serves(transport))
    }

    /// Says in `pipe` who the instance is, and whatever changes of it; calls `known` before: what the instance says after it was told is
    /// heard after that. Ends with the instance; to be aborted when that is gone.
    pub(crate) async fn tell(
        self,
        function: FunctionId,
        instance: InstanceId,
        pipe: OwnedFd,
        known: impl FnOnce(Result<Arc<str>, String>),
    ) {
        let Some(issuer) = self.0 else { return };
        let mut identity = match issuer.issue(function, instance).await {
            Ok(identity) => identity,
            Err(why) => return known(Err(why)),
        };
        let name = Arc::clone(&identity.name);
        let _forget = Forget { issuer, name: Arc::clone(&name) };
        let Ok(mut pipe) = pipe::Sender::from_owned_fd(pipe) else { return };
        known(Ok(name));
        while let Some(frame) = identity.frames.recv().await {
            if write(&mut pipe, &frame).await.is_err() {
                return; // nobody reads any more: the instance is ending
            }
        }
        std::future::pending().await // the name is good until the instance is gone
    }
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Telling(JoinHandle<()>);

impl Telling {
    pub(crate) fn begin(telling: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(telling))
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn write(pipe: &mut pipe::Sender, frame: &[u8]) -> io::Result<()> {
    pipe.write_all(frame).await
}

struct Forget {
    issuer: Arc<dyn Issuer>,
    name: Arc<str>,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.issuer.gone(&self.name);
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Identities" } else { "no identities" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Fake {
        frames: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
        gone: Mutex<Vec<String>>,
    }

    impl Issuer for Fake {
        fn serves(&self, transport: Transport) -> bool {
            transport == Transport::Quic
        }

        fn issue(&self, function: FunctionId, instance: InstanceId) -> BoxFuture<'static, Result<Identity, String>> {
            if instance.0 == 0 {
                return Box::pin(std::future::ready(Err("no key".to_owned())));
            }
            let (sender, frames) = mpsc::channel(4);
            sender.try_send(b"first".to_vec()).unwrap();
            *self.frames.lock().unwrap() = Some(sender);
            Box::pin(std::future::ready(Ok(Identity { name: format!("{instance}.{function}").into(), frames })))
        }

        fn gone(&self, name: &str) {
            self.gone.lock().unwrap().push(name.to_owned());
        }
    }

    fn read(pipe: &mut io::PipeReader, wanted: &[u8]) {
        let mut got = vec![0; wanted.len()];
        pipe.read_exact(&mut got).unwrap();
        assert_eq!(got, wanted);
    }

    #[tokio::test]
    async fn it_is_said_once_and_again_when_it_changes_and_forgotten_in_the_end() {
        let (fake, (mut reader, writer)) = (Arc::new(Fake::default()), io::pipe().unwrap());
        let (known, knowing) = tokio::sync::oneshot::channel();
        let telling =
            Identities::from(fake.clone()).tell("echo".parse().unwrap(), InstanceId(7), writer.into(), |name| {
                known.send(name).unwrap();
            });
        let telling = tokio::spawn(telling);
        assert_eq!(&*knowing.await.unwrap().unwrap(), "i7.echo.openfaas-fn");
        read(&mut reader, b"first");
        let sender = fake.frames.lock().unwrap().clone().unwrap();
        sender.send(b"second".to_vec()).await.unwrap();
        let reader = tokio::task::spawn_blocking(move || {
            read(&mut reader, b"second");
            reader
        });
        drop(reader.await.unwrap());
        telling.abort();
        assert!(telling.await.unwrap_err().is_cancelled());
        assert_eq!(*fake.gone.lock().unwrap(), ["i7.echo.openfaas-fn"]);
    }

    #[tokio::test]
    async fn why_there_is_none_is_told() {
        let (_reader, writer) = io::pipe().unwrap();
        let mut told = None;
        let fake: Arc<dyn Issuer> = Arc::new(Fake::default());
        Identities::from(fake)
            .tell("echo".parse().unwrap(), InstanceId(0), writer.into(), |name| told = Some(name))
            .await;
        assert_eq!(told.unwrap().unwrap_err(), "no key");
    }
}
