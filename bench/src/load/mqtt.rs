//! An MQTT 3.1.1 client that publishes with QoS 1 and waits for the acknowledgement. nearpath's
//! gateway acknowledges after the function's response.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use mqtt_proto::{Pid, QosPid, TopicName, v3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connection::REQUEST_TIMEOUT;
use crate::tally::RequestFailure;

/// A connection after CONNACK.
pub(crate) struct MqttPublisher {
    stream: TcpStream,
    pid: Pid,
}

impl MqttPublisher {
    pub(crate) async fn open(addr: SocketAddr) -> Result<Self, RequestFailure> {
        let stream = TcpStream::connect(addr)
            .await
            .map_err(|_| RequestFailure::Connect)?;
        stream
            .set_nodelay(true)
            .map_err(|_| RequestFailure::Connect)?;
        let mut publisher = Self {
            stream,
            pid: Pid::default(),
        };
        // Keep-alive of 600 s: this client sends no pings between events.
        let connect = v3::Connect::new(Arc::from("bench"), 600);
        match publisher
            .exchange_packet(v3::Packet::Connect(connect))
            .await?
        {
            v3::Packet::Connack(connack) if connack.code == v3::ConnectReturnCode::Accepted => {
                Ok(publisher)
            }
            _ => Err(RequestFailure::Connect),
        }
    }

    /// Publishes a message and waits for the acknowledgement.
    pub(crate) async fn publish(
        &mut self,
        topic: &TopicName,
        payload: Bytes,
    ) -> Result<(), RequestFailure> {
        // Packet ids may be reused after the acknowledgement, but distinct ones tell a late PUBACK
        // from the expected one.
        self.pid += 1;
        let publish = v3::Publish::new(QosPid::Level1(self.pid), topic.clone(), payload);
        let exchange = self.exchange_packet(v3::Packet::Publish(publish));
        match tokio::time::timeout(REQUEST_TIMEOUT, exchange)
            .await
            .unwrap_or(Err(RequestFailure::Timeout))?
        {
            v3::Packet::Puback(pid) if pid == self.pid => Ok(()),
            _ => Err(RequestFailure::Broken),
        }
    }

    async fn exchange_packet(&mut self, packet: v3::Packet) -> Result<v3::Packet, RequestFailure> {
        let bytes = packet.encode().map_err(|_| RequestFailure::Generator)?;
        self.stream
            .write_all(bytes.as_ref())
            .await
            .map_err(|_| RequestFailure::Broken)?;
        self.receive_packet().await
    }

    /// Receives the next packet. The server sends only responses, so the received bytes are one
    /// packet or a part of it.
    async fn receive_packet(&mut self) -> Result<v3::Packet, RequestFailure> {
        let mut bytes = BytesMut::new();
        loop {
            if let Some(packet) = v3::Packet::decode(&bytes).map_err(|_| RequestFailure::Broken)? {
                return Ok(packet);
            }
            match self.stream.read_buf(&mut bytes).await {
                // Zero is the end of the stream: the broker closed within a packet.
                Ok(read) if read > 0 => {}
                _ => return Err(RequestFailure::Broken),
            }
        }
    }
}
