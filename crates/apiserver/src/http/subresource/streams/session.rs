//! A SPDY connection with a client of `exec`, `attach` or `portforward`, direct or inside a WebSocket.
//!
//! A command's client opens all of its streams first; then the error stream gets the outcome and all streams end. For each forwarded
//! connection the error stream gets the reason as soon as it opens, and the data stream ends. Every wait is bounded, and data from the
//! client is discarded.

use std::{io, time::Duration};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::{WebSocketStream, tungstenite};

use super::{
    Connection, sentence_of_ports,
    spdy::{self, Broken, Event, Reader, Writer},
};

/// How long a client may take to open the streams of a command (kubelet: DefaultStreamCreationTimeout).
const OPEN: Duration = Duration::from_secs(30);
/// How long an idle connection is kept (kubelet: streamingConnectionIdleTimeout).
const IDLE: Duration = Duration::from_secs(4 * 60 * 60);
/// How long a client may take to receive a frame.
pub(super) const WRITE: Duration = Duration::from_secs(30);
/// How long a client has to read the outcome and to close the connection.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(30);

/// The reason why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("the client took too long")]
    Slow,
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error(transparent)]
    WebSocket(Box<tungstenite::Error>),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the connection was not handed over: {0}")]
    Switch(#[from] hyper::Error),
    #[error("the client closed the connection")]
    Closed,
}

impl From<tokio::time::error::Elapsed> for SessionError {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        SessionError::Slow
    }
}

impl From<tungstenite::Error> for SessionError {
    fn from(error: tungstenite::Error) -> Self {
        SessionError::WebSocket(Box::new(error))
    }
}

/// The transport of the frames.
pub(super) enum Wire {
    /// The connection itself.
    Plain(Connection),
    /// Messages of a WebSocket; a message may hold any part of a frame.
    Tunnel(Box<WebSocketStream<Connection>>),
}

impl Wire {
    /// Returns the next bytes; empty at the end.
    async fn read(&mut self) -> Result<Bytes, SessionError> {
        match self {
            Wire::Plain(connection) => {
                let mut piece = vec![0; 16 * 1024];
                let length = connection.read(&mut piece).await?;
                piece.truncate(length);
                Ok(piece.into())
            }
            Wire::Tunnel(socket) => loop {
                match socket.next().await {
                    Some(Ok(message)) if message.is_binary() && !message.is_empty() => {
                        return Ok(message.into_data());
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error.into()),
                    None => return Ok(Bytes::new()),
                }
            },
        }
    }

    async fn write(&mut self, frame: Bytes) -> Result<(), SessionError> {
        let write = async {
            match self {
                Wire::Plain(connection) => {
                    connection.write_all(&frame).await?;
                    connection.flush().await?;
                }
                Wire::Tunnel(socket) => socket.send(tungstenite::Message::binary(frame)).await?,
            }
            Ok(())
        };
        tokio::time::timeout(WRITE, write).await?
    }

    /// Closes the transport properly: TLS expects a closing message.
    async fn close(mut self) -> Result<(), SessionError> {
        let close = async {
            if let Wire::Tunnel(socket) = &mut self {
                WebSocketStream::close(socket, None).await?;
            }
            match &mut self {
                Wire::Plain(connection) => connection.shutdown().await?,
                Wire::Tunnel(socket) => socket.get_mut().shutdown().await?,
            }
            Ok(())
        };
        tokio::time::timeout(WRITE, close).await?
    }
}

/// Reads and writes the frames of a connection.
struct Frames {
    wire: Wire,
    reader: Reader,
    writer: Writer,
}

impl Frames {
    fn new(wire: Wire) -> Self {
        Frames {
            wire,
            reader: Reader::new(),
            writer: Writer::default(),
        }
    }

    /// Returns the next stream that the client opens, or `None` when it opens no more.
    async fn opened(&mut self) -> Result<Option<(u32, Vec<(String, String)>)>, SessionError> {
        loop {
            match self.reader.next()? {
                Some(Event::Opened { stream, headers }) => return Ok(Some((stream, headers))),
                Some(Event::Ping(id)) => self.wire.write(spdy::pong(id)).await?,
                Some(Event::GoAway) => return Ok(None),
                None => {
                    let bytes = self.wire.read().await?;
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    self.reader.take(&bytes);
                }
            }
        }
    }

    async fn accept(&mut self, stream: u32) -> Result<(), SessionError> {
        let frame = self.writer.accept(stream);
        self.wire.write(frame).await
    }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> &'a str {
    let found = headers.iter().find(|(given, _)| given == name);
    found.map_or("", |(_, value)| value)
}

/// Ends a command for which the client opens `streams` streams.
pub(super) async fn command(
    wire: Wire,
    streams: usize,
    failure: Vec<u8>,
) -> Result<(), SessionError> {
    let mut frames = Frames::new(wire);
    let mut open = Vec::with_capacity(streams);
    let wait = async {
        while open.len() < streams {
            let (stream, headers) = frames.opened().await?.ok_or(SessionError::Closed)?;
            match header(&headers, "streamtype") {
                kind @ ("error" | "stdin" | "stdout" | "stderr" | "resize") => {
                    frames.accept(stream).await?;
                    open.push((stream, kind == "error"));
                }
                _ => frames.wire.write(spdy::refuse(stream)).await?,
            }
        }
        Ok::<_, SessionError>(())
    };
    tokio::time::timeout(OPEN, wait).await??;
    for (stream, is_error) in open {
        let data = if is_error { failure.as_slice() } else { &[] };
        frames.wire.write(spdy::last(stream, data)).await?;
    }
    // Closing now, while input is on its way, could reset the connection and lose the outcome.
    let until_closed = async {
        while frames.opened().await?.is_some() {}
        Ok::<_, SessionError>(())
    };
    tokio::time::timeout(LAST_WORDS, until_closed).await??;
    frames.wire.close().await
}

/// Refuses every connection that the client forwards.
pub(super) async fn ports(wire: Wire, pod_name: String) -> Result<(), SessionError> {
    let mut frames = Frames::new(wire);
    while let Some((stream, headers)) = tokio::time::timeout(IDLE, frames.opened()).await?? {
        let port = header(&headers, "port").parse::<u16>().unwrap_or(0);
        let why = match (port, header(&headers, "streamtype")) {
            (1.., "error") => sentence_of_ports(&pod_name, &format!("its port {port}")),
            (1.., "data") => String::new(),
            _ => {
                frames.wire.write(spdy::refuse(stream)).await?;
                continue;
            }
        };
        frames.accept(stream).await?;
        frames
            .wire
            .write(spdy::last(stream, why.as_bytes()))
            .await?;
    }
    frames.wire.close().await
}
