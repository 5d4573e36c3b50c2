//! Implements the client: a TLS connection with just enough HTTP/1.1 that the load costs little of the cores that it shares with the
//! server.
//!
//! A request is sent in one piece, and its answer is read completely before the next request; a watch takes over its connection. Only the
//! status, the length and the number of lines of an answer are parsed.

use std::net::SocketAddr;

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::failure::Failure;

/// The size of the read buffer in bytes.
const READ: usize = 64 * 1024;

/// A request as it is sent.
pub(in crate::bench) struct Request(Vec<u8>);

impl Request {
    pub(in crate::bench) fn get(path: &str) -> Self {
        Request(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes())
    }

    pub(in crate::bench) fn post(path: &str, body: &[u8]) -> Self {
        Self::with_body("POST", path, "application/json", body)
    }

    /// Creates a request with a JSON merge patch.
    pub(in crate::bench) fn patch(path: &str, body: &[u8]) -> Self {
        Self::with_body("PATCH", path, "application/merge-patch+json", body)
    }

    fn with_body(method: &str, path: &str, kind: &str, body: &[u8]) -> Self {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nuser-agent: bench/1\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Request([head.as_bytes(), body].concat())
    }
}

/// The parsed parts of an answer.
pub(in crate::bench) struct Answer {
    status: u16,
    /// The length of the body in bytes.
    pub(in crate::bench) length: usize,
}

/// A connection to the server.
pub(in crate::bench) struct Connection {
    stream: TlsStream<TcpStream>,
    buffer: Vec<u8>,
    /// The number of bytes in the buffer that are not parsed yet.
    unread: usize,
}

impl Connection {
    pub(in crate::bench) async fn open(
        address: SocketAddr,
        connector: &TlsConnector,
    ) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await.map_err(broken)?;
        // Otherwise the kernel may hold a small request back until the last answer is acknowledged.
        stream.set_nodelay(true).map_err(broken)?;
        let name = ServerName::from(address.ip());
        let stream = connector.connect(name, stream).await.map_err(broken)?;
        Ok(Connection {
            stream,
            buffer: vec![0; READ],
            unread: 0,
        })
    }

    /// Sends a request, and fails if the answer has another status than `status`.
    pub(in crate::bench) async fn expect(
        &mut self,
        request: &Request,
        status: u16,
    ) -> Result<Answer, Failure> {
        self.send(request).await?;
        let answer = self.head().await?;
        self.skip(answer.length).await?;
        if answer.status != status {
            return Err(Failure::run(format!(
                "the server answered {} where {status} was due",
                answer.status
            )));
        }
        Ok(answer)
    }

    /// Sends a watch request, and reads the head of the answer.
    pub(in crate::bench) async fn watch(&mut self, request: &Request) -> Result<(), Failure> {
        self.send(request).await?;
        let head = self.head().await?;
        match head.status {
            200 => Ok(()),
            status => Err(Failure::run(format!(
                "the server answered a watch with {status}"
            ))),
        }
    }

    /// Reads from a watch until `wanted` events have come.
    pub(in crate::bench) async fn events(&mut self, wanted: usize) -> Result<(), Failure> {
        let mut chunks = Chunks::default();
        let mut seen = chunks.lines(&self.buffer[..self.unread]);
        self.unread = 0;
        while seen < wanted {
            let read = self.read_at(0).await?;
            seen += chunks.lines(&self.buffer[..read]);
        }
        Ok(())
    }

    async fn send(&mut self, request: &Request) -> Result<(), Failure> {
        self.stream.write_all(&request.0).await.map_err(broken)?;
        self.stream.flush().await.map_err(broken)
    }

    async fn read_at(&mut self, from: usize) -> Result<usize, Failure> {
        match self.stream.read(&mut self.buffer[from..]).await {
            Ok(0) => Err(Failure::run("the server closed a connection")),
            Ok(read) => Ok(read),
            Err(error) => Err(broken(error)),
        }
    }

    /// Reads the head of an answer.
    async fn head(&mut self) -> Result<Answer, Failure> {
        loop {
            let read = &self.buffer[..self.unread];
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                let answer = Answer::of(&read[..end]).ok_or_else(|| {
                    Failure::run("the server's answer has no status or no length")
                })?;
                self.buffer.copy_within(end + 4..self.unread, 0);
                self.unread -= end + 4;
                return Ok(answer);
            }
            self.unread += self.read_at(self.unread).await?;
        }
    }

    /// Reads and drops a body of known length.
    async fn skip(&mut self, length: usize) -> Result<(), Failure> {
        let mut left = length.saturating_sub(self.unread);
        self.unread = self.unread.saturating_sub(length);
        while left > 0 {
            left = left.saturating_sub(self.read_at(0).await?);
        }
        Ok(())
    }
}

impl Answer {
    fn of(head: &[u8]) -> Option<Answer> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let length = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().ok())?
        });
        Some(Answer {
            status,
            length: length.unwrap_or(0),
        })
    }
}

/// The position in a chunked body: `left` bytes of the current chunk are still to come, including its line break, or else a line with the
/// next chunk's `size` is being read.
#[derive(Default)]
struct Chunks {
    left: usize,
    size: usize,
}

impl Chunks {
    /// Counts the line breaks in the content of more bytes.
    fn lines(&mut self, mut bytes: &[u8]) -> usize {
        let mut lines = 0;
        while let Some(&first) = bytes.first() {
            if self.left > 0 {
                let here = self.left.min(bytes.len());
                lines += line_ends(&bytes[..here]);
                // The last byte is the line break that ends the chunk, which is not part of the content.
                lines = lines.saturating_sub(usize::from(self.left == here));
                self.left -= here;
                bytes = &bytes[here..];
                continue;
            }
            match first {
                b'\n' => {
                    self.left = self.size + 2;
                    self.size = 0;
                }
                digit => {
                    if let Some(digit) = (digit as char).to_digit(16) {
                        self.size = self.size * 16 + digit as usize;
                    }
                }
            }
            bytes = &bytes[1..];
        }
        lines
    }
}

/// Counts line breaks. The counts of 192 bytes fit in a byte, which lets the compiler count many bytes at a time.
fn line_ends(bytes: &[u8]) -> usize {
    let count = |part: &[u8]| part.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>();
    bytes.chunks(192).map(|part| usize::from(count(part))).sum()
}

fn broken(error: std::io::Error) -> Failure {
    Failure::run(format!(
        "a client's connection to the server broke: {error}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_chunked_body_are_counted_however_it_is_cut() {
        let body = b"5\r\nab\nc\n\r\n12\r\n{\"type\":\"ADDED\"}\n\n\r\n3\r\nxyz\r\n";
        for cut in 0..body.len() {
            let mut chunks = Chunks::default();
            let (left, right) = body.split_at(cut);
            assert_eq!(chunks.lines(left) + chunks.lines(right), 4, "cut at {cut}");
        }
    }

    #[test]
    fn an_answer_has_a_status_and_a_length() {
        let answer = Answer::of(b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\nx: y").unwrap();
        assert_eq!((answer.status, answer.length), (201, 12));
        assert!(Answer::of(b"nonsense").is_none());
    }
}
