//! Streams as channels of a WebSocket: the first byte of each message is the channel's number.
//!
//! A command has the channels 0 stdin, 1 stdout, 2 stderr, 3 outcome, 4 terminal size. A forwarded port has two channels: data at twice
//! the index of the port in the request, and errors at the next number. Data from the client is ignored.

use std::{num::ParseIntError, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use super::{
    Connection, sentence_of_ports,
    session::{LAST_WORDS, SessionError, WRITE},
};
use crate::request::query::Query;

const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const OUTCOME: u8 = 3;
/// The message of protocol version 5 that closes channel 0.
const END_OF_INPUT: [u8; 2] = [255, 0];
/// A client that sends nothing for this long has no more input; a program that copies a file would not pause.
const PAUSE: Duration = Duration::from_millis(300);
/// How long to wait for a sign that the client reads. Every WebSocket library answers pings, and a client that does not read misses
/// nothing.
const READS: Duration = Duration::from_secs(5);
/// How long a client that reads may take to open its streams, which it does concurrently.
const OPENS: Duration = Duration::from_millis(100);
/// The most ports whose channels fit into one byte.
const PORTS: usize = 127;
/// The most bytes of one message; clients that send files use smaller ones.
const MESSAGE: usize = 4 * 1024 * 1024;

/// The encoding of a channel's bytes.
#[derive(Clone, Copy)]
pub(super) enum Codec {
    /// Raw bytes after the channel's number.
    Binary,
    /// Base64 after the channel's digit.
    Base64,
}

impl Codec {
    /// Returns the encoding of a subprotocol.
    pub(super) fn of(protocol: &str) -> Self {
        if protocol.ends_with("base64.channel.k8s.io") {
            Codec::Base64
        } else {
            Codec::Binary
        }
    }

    fn message(self, channel: u8, data: &[u8]) -> Message {
        match self {
            Codec::Binary => Message::binary(Bytes::from([&[channel], data].concat())),
            Codec::Base64 => {
                let digit = char::from(b'0'.wrapping_add(channel));
                Message::text(format!("{digit}{}", STANDARD.encode(data)))
            }
        }
    }
}

/// Returns the channel that shows the client that the connection is established: the first writable one (kubelet:
/// createWebSocketStreams).
pub(super) fn first(stdout: bool, stderr: bool) -> u8 {
    match (stdout, stderr) {
        (true, _) => STDOUT,
        (_, true) => STDERR,
        _ => OUTCOME,
    }
}

/// The reason why a request names no usable ports.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PortsError {
    /// No port is named.
    #[error("query parameter \"port\" is required")]
    Missing,
    /// A port is empty.
    #[error("query parameter \"port\" cannot be empty")]
    Empty,
    /// A port is zero.
    #[error("port {0:?} must be > 0")]
    Zero(String),
    /// A port is not a number.
    #[error("unable to parse {text:?} as a port: {why}")]
    NotANumber {
        /// The port.
        text: String,
        /// The reason.
        why: ParseIntError,
    },
    /// So many ports are named.
    #[error("{0} ports are asked for; {PORTS} fit into one connection")]
    TooMany(usize),
}

/// Returns the ports of a request, which WebSocket clients name in the query (kubelet: NewV4Options).
pub(super) fn ports(query: &Query) -> Result<Vec<u16>, PortsError> {
    let mut ports = Vec::new();
    for given in query.all("ports").chain(query.all("port")) {
        if given.is_empty() {
            return Err(PortsError::Empty);
        }
        for text in given.split(',') {
            match text.parse() {
                Ok(0) => return Err(PortsError::Zero(text.to_owned())),
                Ok(port) => ports.push(port),
                Err(why) => {
                    let text = text.to_owned();
                    return Err(PortsError::NotANumber { text, why });
                }
            }
        }
    }
    match ports.len() {
        0 => Err(PortsError::Missing),
        1..=PORTS => Ok(ports),
        many => Err(PortsError::TooMany(many)),
    }
}

/// Returns the server's end of a WebSocket.
pub(crate) async fn accept(connection: Connection) -> WebSocketStream<Connection> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE))
        .max_frame_size(Some(MESSAGE));
    WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await
}

/// A WebSocket with channels.
pub(super) struct Socket {
    socket: WebSocketStream<Connection>,
    codec: Codec,
}

impl Socket {
    pub(super) async fn new(connection: Connection, codec: Codec) -> Self {
        let socket = accept(connection).await;
        Socket { socket, codec }
    }

    /// Ends a command with its outcome; `with_input` says whether the client sends stdin.
    pub(super) async fn command(
        mut self,
        first: u8,
        failure: Vec<u8>,
        with_input: bool,
    ) -> Result<(), SessionError> {
        let input_ended = self.client_reads().await?;
        self.write(first, &[]).await?;
        self.write(OUTCOME, &failure).await?;
        if with_input && !input_ended {
            let _ = tokio::time::timeout(WRITE, self.pass_over_input()).await;
        }
        self.close().await
    }

    /// Waits until the client is known to read, by its answer to a ping or by input, and returns whether that was the end of its input.
    /// kubectl 1.30 to 1.33 accept the connection first, then read and open their streams concurrently, and drop data for a stream that
    /// is not open yet. A real container would take some time as well.
    async fn client_reads(&mut self) -> Result<bool, SessionError> {
        let ping = self.socket.send(Message::Ping(Bytes::new()));
        tokio::time::timeout(WRITE, ping).await??;
        let ended = match tokio::time::timeout(READS, self.socket.next()).await {
            Ok(Some(answer)) => *answer?.into_data() == END_OF_INPUT,
            Ok(None) | Err(_) => false,
        };
        tokio::time::sleep(OPENS).await;
        Ok(ended)
    }

    /// Reads until the client ends its input (version 5) or pauses. A client that cannot send its input would print an error before the
    /// outcome.
    async fn pass_over_input(&mut self) {
        while let Ok(Some(Ok(message))) = tokio::time::timeout(PAUSE, self.socket.next()).await {
            if *message.into_data() == END_OF_INPUT {
                return;
            }
        }
    }

    /// Sends an error for every port.
    pub(super) async fn ports(mut self, ports: &[u16], pod_name: &str) -> Result<(), SessionError> {
        for (channel, port) in (0..).step_by(2).zip(ports) {
            // A channel's first message is its port.
            self.write(channel, &port.to_le_bytes()).await?;
            self.write(channel + 1, &port.to_le_bytes()).await?;
            let why = sentence_of_ports(pod_name, &format!("its port {port}"));
            self.write(channel + 1, why.as_bytes()).await?;
        }
        self.close().await
    }

    async fn write(&mut self, channel: u8, data: &[u8]) -> Result<(), SessionError> {
        let sent = self.socket.send(self.codec.message(channel, data));
        Ok(tokio::time::timeout(WRITE, sent).await??)
    }

    async fn close(self) -> Result<(), SessionError> {
        close(self.socket).await
    }
}

/// Closes the connection once the client has read everything: data that arrives on a closed socket would reset it and lose the outcome.
pub(crate) async fn close(mut socket: WebSocketStream<Connection>) -> Result<(), SessionError> {
    let goodbye = CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    };
    let close = async {
        socket.close(Some(goodbye)).await?;
        while let Some(message) = socket.next().await {
            message?;
        }
        // TLS sends a closing message of its own.
        Ok(socket.get_mut().shutdown().await?)
    };
    tokio::time::timeout(LAST_WORDS, close).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_a_kubelet_reads_them() {
        let read = |query: &str| ports(&Query::parse(Some(query)));
        assert_eq!(read("ports=80&ports=81,82"), Ok(vec![80, 81, 82]));
        assert_eq!(read("port=80"), Ok(vec![80]));
        let why = |query: &str| read(query).expect_err("refused").to_string();
        assert_eq!(why(""), "query parameter \"port\" is required");
        assert_eq!(why("ports=0"), "port \"0\" must be > 0");
        assert!(why("ports=70000").starts_with("unable to parse \"70000\" as a port: "));
        let many = vec!["1"; 128].join(",");
        let sentence = "128 ports are asked for; 127 fit into one connection";
        assert_eq!(why(&format!("ports={many}")), sentence);
    }

    #[test]
    fn a_message_begins_with_its_channel() {
        let text = |codec: Codec| codec.message(3, b"no").into_data();
        assert_eq!(text(Codec::of("v4.channel.k8s.io")), b"\x03no".as_slice());
        assert_eq!(
            text(Codec::of("v4.base64.channel.k8s.io")),
            b"3bm8=".as_slice()
        );
    }
}
