//! A client of MQTT 3.1.1 that publishes with QoS 1 and waits for the acknowledgement: nearpath's gateway gives it when the
//! function has answered.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use mqtt_proto::{Pid, QosPid, TopicName, v3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connection::PATIENCE;
use crate::tally::Failure;

/// A connection that was welcomed.
pub(crate) struct Publisher {
    stream: TcpStream,
    pid: Pid,
}

impl Publisher {
    pub(crate) async fn open(addr: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(addr)
            .await
            .map_err(|_| Failure::Connect)?;
        stream.set_nodelay(true).map_err(|_| Failure::Connect)?;
        let mut publisher = Self {
            stream,
            pid: Pid::default(),
        };
        let connect = v3::Connect::new(Arc::from("bench"), 600);
        match publisher.exchange(v3::Packet::Connect(connect)).await? {
            v3::Packet::Connack(connack) if connack.code == v3::ConnectReturnCode::Accepted => {
                Ok(publisher)
            }
            _ => Err(Failure::Connect),
        }
    }

    /// Publishes and waits for the acknowledgement.
    pub(crate) async fn publish(
        &mut self,
        topic: &TopicName,
        payload: Bytes,
    ) -> Result<(), Failure> {
        self.pid += 1;
        let publish = v3::Publish::new(QosPid::Level1(self.pid), topic.clone(), payload);
        let exchange = self.exchange(v3::Packet::Publish(publish));
        match tokio::time::timeout(PATIENCE, exchange)
            .await
            .unwrap_or(Err(Failure::Timeout))?
        {
            v3::Packet::Puback(pid) if pid == self.pid => Ok(()),
            _ => Err(Failure::Broken),
        }
    }

    async fn exchange(&mut self, packet: v3::Packet) -> Result<v3::Packet, Failure> {
        let bytes = packet.encode().map_err(|_| Failure::Generator)?;
        self.stream
            .write_all(bytes.as_ref())
            .await
            .map_err(|_| Failure::Broken)?;
        self.receive().await
    }

    /// The next packet. The server says nothing unasked, so what has come is one packet or the beginning of one.
    async fn receive(&mut self) -> Result<v3::Packet, Failure> {
        let mut bytes = BytesMut::new();
        loop {
            if let Some(packet) = v3::Packet::decode(&bytes).map_err(|_| Failure::Broken)? {
                return Ok(packet);
            }
            match self.stream.read_buf(&mut bytes).await {
                Ok(read) if read > 0 => {}
                _ => return Err(Failure::Broken),
            }
        }
    }
}
