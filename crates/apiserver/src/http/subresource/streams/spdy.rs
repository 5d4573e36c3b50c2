//! SPDY/3.1 frames as far as clients of `exec` and `portforward` need them: opening and ending streams, and pings. Data in streams is
//! skipped.
//!
//! This module does no input or output: bytes come in, [`Event`]s come out, and the functions below build response frames. Incoming
//! header blocks are compressed with the protocol's dictionary as one deflate stream for the whole connection; outgoing ones use stored
//! blocks of the same format. The rules are those of the SPDY/3.1 draft as spdystream (the library in client-go) implements them.

use std::sync::LazyLock;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Decompress, FlushDecompress};

/// The most bytes of a frame with a header block, and of the decompressed block. Clients open streams with three headers.
const HEADER_BLOCK: usize = 16 * 1024;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const FIN: u8 = 1;
/// The status with which an unwanted stream is reset.
const REFUSED_STREAM: u32 = 3;

/// An action of the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Opens a stream.
    Opened {
        /// The stream's number.
        stream: u32,
        /// The headers, with names in lower case.
        headers: Vec<(String, String)>,
    },
    /// Asks for this number to be sent back.
    Ping(u32),
    /// Opens no more streams and will close the connection.
    GoAway,
}

/// The reason why a connection cannot continue.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// Another version of the protocol, or another protocol.
    #[error("a control frame of SPDY version {0}, where 3 was agreed on")]
    Version(u16),
    /// A frame that is longer than clients need, or too short for its type.
    #[error("a control frame of type {kind} with {length} bytes")]
    Length {
        /// The frame's type.
        kind: u16,
        /// Its length.
        length: usize,
    },
    /// A header block that cannot be decoded.
    #[error("the headers of a stream cannot be read")]
    Headers,
}

/// Parses the frames that a client sends.
pub(super) struct Reader {
    pending: BytesMut,
    /// The bytes of the current data frame that are still to be skipped.
    passing: usize,
    headers: Inflater,
}

impl Reader {
    pub(super) fn new() -> Self {
        Reader {
            pending: BytesMut::new(),
            passing: 0,
            headers: Inflater::default(),
        }
    }

    /// Adds bytes from the network.
    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        let passed = self.passing.min(bytes.len());
        self.passing -= passed;
        bytes.advance(passed);
        self.pending.extend_from_slice(bytes);
    }

    /// Returns the client's next action, or `None` until more bytes arrive.
    pub(super) fn next(&mut self) -> Result<Option<Event>, Broken> {
        loop {
            let Some(mut head) = self.pending.get(..8) else {
                return Ok(None);
            };
            let (first, second) = (head.get_u32(), head.get_u32());
            let length = (second & 0x00ff_ffff) as usize;
            if first >> 31 == 0 {
                self.pending.advance(8);
                let passed = length.min(self.pending.len());
                self.pending.advance(passed);
                self.passing = length - passed;
                continue;
            }
            let (version, kind) = ((first >> 16 & 0x7fff) as u16, first as u16);
            if version != 3 {
                return Err(Broken::Version(version));
            }
            // Checked before the frame is collected, or a client could make the server buffer sixteen megabytes.
            if length > HEADER_BLOCK {
                return Err(Broken::Length { kind, length });
            }
            if self.pending.len() < 8 + length {
                return Ok(None);
            }
            self.pending.advance(8);
            let frame = self.pending.split_to(length).freeze();
            if let Some(event) = self.control(kind, frame)? {
                return Ok(Some(event));
            }
        }
    }

    fn control(&mut self, kind: u16, mut frame: Bytes) -> Result<Option<Event>, Broken> {
        let length = frame.len();
        let mut fixed = |size: usize| {
            if frame.len() >= size {
                Ok(frame.split_to(size))
            } else {
                Err(Broken::Length { kind, length })
            }
        };
        Ok(match kind {
            SYN_STREAM => {
                let stream = fixed(10)?.get_u32() & 0x7fff_ffff;
                let headers = pairs(&self.headers.block(&frame)?)?;
                Some(Event::Opened { stream, headers })
            }
            // These headers are not needed, but decompress them: the next block continues the same deflate stream.
            SYN_REPLY | HEADERS => {
                fixed(4)?;
                self.headers.block(&frame)?;
                None
            }
            PING => Some(Event::Ping(fixed(4)?.get_u32())),
            GOAWAY => Some(Event::GoAway),
            _ => None,
        })
    }
}

/// Parses the names and values of a header block.
fn pairs(mut block: &[u8]) -> Result<Vec<(String, String)>, Broken> {
    fn text(block: &mut &[u8]) -> Option<String> {
        let length = block.try_get_u32().ok()? as usize;
        let (text, rest) = block.split_at_checked(length)?;
        *block = rest;
        String::from_utf8(text.to_vec()).ok()
    }
    let count = block.try_get_u32().map_err(|_| Broken::Headers)?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let name = text(&mut block).ok_or(Broken::Headers)?;
        let value = text(&mut block).ok_or(Broken::Headers)?;
        pairs.push((name.to_ascii_lowercase(), value));
    }
    Ok(pairs)
}

/// Decompresses the header blocks of one connection.
struct Inflater {
    raw: Decompress,
    begun: bool,
}

impl Default for Inflater {
    fn default() -> Self {
        Inflater {
            raw: Decompress::new(false),
            begun: false,
        }
    }
}

impl Inflater {
    fn block(&mut self, mut packed: &[u8]) -> Result<Vec<u8>, Broken> {
        if !self.begun {
            packed = self.begin(packed)?;
            self.begun = true;
        }
        let mut plain = Vec::new();
        while plain.len() <= HEADER_BLOCK {
            plain.reserve(1024);
            let (taken, given) = (self.raw.total_in(), plain.len());
            self.raw
                .decompress_vec(packed, &mut plain, FlushDecompress::Sync)
                .map_err(|_| Broken::Headers)?;
            let taken = (self.raw.total_in() - taken) as usize;
            packed = &packed[taken..];
            if packed.is_empty() && plain.len() < plain.capacity() {
                return Ok(plain);
            }
            if taken == 0 && plain.len() == given {
                break;
            }
        }
        Err(Broken::Headers)
    }

    /// Parses the head of a zlib stream, and feeds the dictionary that the stream refers to.
    fn begin<'a>(&mut self, packed: &'a [u8]) -> Result<&'a [u8], Broken> {
        let (head, mut rest) = packed.split_at_checked(2).ok_or(Broken::Headers)?;
        let is_zlib =
            head[0] & 0x0f == 8 && u16::from_be_bytes([head[0], head[1]]).is_multiple_of(31);
        if !is_zlib {
            return Err(Broken::Headers);
        }
        if head[1] & 0x20 != 0 {
            if rest.try_get_u32() != Ok(DICTIONARY_ID) {
                return Err(Broken::Headers);
            }
            // Later blocks can refer to the content of a stored block, so that loads the dictionary.
            let primer = stored(&DICTIONARY);
            let mut plain = Vec::with_capacity(DICTIONARY.len() + 1);
            self.raw
                .decompress_vec(&primer, &mut plain, FlushDecompress::Sync)
                .map_err(|_| Broken::Headers)?;
        }
        Ok(rest)
    }
}

/// Returns a stored (uncompressed) block of a deflate stream, not marked as the last one.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("what is stored is short");
    let mut block = Vec::with_capacity(5 + bytes.len());
    block.put_u8(0);
    block.put_u16_le(length);
    block.put_u16_le(!length);
    block.put_slice(bytes);
    block
}

/// The Adler-32 sum of [`DICTIONARY`].
const DICTIONARY_ID: u32 = 0xe3c6_a7c2;

/// The dictionary of SPDY/3: words, each after its length, then fragments of values.
static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|accept-ranges|age|\
        allow|authorization|cache-control|connection|content-base|content-encoding|content-language|content-length|content-location|\
        content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|\
        if-unmodified-since|last-modified|location|max-forwards|pragma|proxy-authenticate|proxy-authorization|range|referer|\
        retry-after|server|te|trailer|transfer-encoding|upgrade|user-agent|vary|via|warning|www-authenticate|method|get|status|\
        200 OK|version|HTTP/1.1|url|public|set-cookie|keep-alive|origin";
    const PIECES: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
        203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
        404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
        Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
        chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
        publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
    let mut dictionary = Vec::with_capacity(1423);
    for word in WORDS.split('|') {
        dictionary.put_u32(word.len() as u32);
        dictionary.put_slice(word.as_bytes());
    }
    dictionary.put_slice(PIECES.as_bytes());
    dictionary
});

/// Builds the frames for a client.
#[derive(Default)]
pub(super) struct Writer {
    begun: bool,
}

impl Writer {
    /// Returns the frame that accepts a stream, without headers.
    pub(super) fn accept(&mut self, stream: u32) -> Bytes {
        let mut block = Vec::new();
        if !self.begun {
            // The header of a zlib stream without a dictionary.
            block.put_u16(0x7801);
            self.begun = true;
        }
        block.extend(stored(&0_u32.to_be_bytes()));
        // An empty block is a flush, which marks the end of the header block for clients that would wait for more.
        block.extend(stored(&[]));
        control(SYN_REPLY, &[stream], &block)
    }
}

/// Returns the frame that refuses a stream.
pub(super) fn refuse(stream: u32) -> Bytes {
    control(RST_STREAM, &[stream, REFUSED_STREAM], &[])
}

/// Returns the answer to a ping.
pub(super) fn pong(id: u32) -> Bytes {
    control(PING, &[id], &[])
}

/// Returns the last data frame of a stream.
pub(super) fn last(stream: u32, data: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(8 + data.len());
    frame.put_u32(stream & 0x7fff_ffff);
    frame.put_u32(u32::from(FIN) << 24 | (data.len() as u32 & 0x00ff_ffff));
    frame.put_slice(data);
    frame.freeze()
}

fn control(kind: u16, fields: &[u32], rest: &[u8]) -> Bytes {
    let length = 4 * fields.len() + rest.len();
    let mut frame = BytesMut::with_capacity(8 + length);
    frame.put_u16(0x8003);
    frame.put_u16(kind);
    frame.put_u32(length as u32);
    for field in fields {
        frame.put_u32(*field);
    }
    frame.put_slice(rest);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames that spdystream sends for three streams, made with Go's zlib and the dictionary at level 9.
    fn opened(stream: u32, block: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.put_u16(0x8003);
        frame.put_u16(SYN_STREAM);
        frame.put_u32(10 + block.len() as u32);
        frame.put_u32(stream);
        frame.put_u32(0);
        frame.put_u16(0);
        frame.extend(block);
        frame
    }

    fn block(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        block.put_u32(pairs.len() as u32);
        for (name, value) in pairs {
            for text in [name, value] {
                block.put_u32(text.len() as u32);
                block.put_slice(text.as_bytes());
            }
        }
        block
    }

    fn events(reader: &mut Reader) -> Vec<Event> {
        std::iter::from_fn(|| reader.next().expect("all is well")).collect()
    }

    #[test]
    fn the_dictionary_is_the_protocols() {
        let (mut a, mut b) = (1_u32, 0_u32);
        for byte in DICTIONARY.iter() {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!((DICTIONARY.len(), b << 16 | a), (1423, DICTIONARY_ID));
    }

    #[test]
    fn streams_open_however_the_bytes_are_cut() {
        let mut bytes = opened(1, &{
            let mut first = vec![0x78, 0x01];
            first.extend(stored(&block(&[("Streamtype", "error")])));
            first.extend(stored(&[]));
            first
        });
        // A data frame, of which only the length matters.
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 3, 7, 7, 7]);
        bytes.extend(control(PING, &[9], &[]));
        bytes.extend(opened(3, &stored(&block(&[("port", "80"), ("x", "")]))));
        bytes.extend(control(GOAWAY, &[0, 0], &[]));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let all = [
            Event::Opened {
                stream: 1,
                headers: vec![pair("streamtype", "error")],
            },
            Event::Ping(9),
            Event::Opened {
                stream: 3,
                headers: vec![pair("port", "80"), pair("x", "")],
            },
            Event::GoAway,
        ];
        for step in [1, 7, bytes.len()] {
            let mut reader = Reader::new();
            let mut seen = Vec::new();
            for piece in bytes.chunks(step) {
                reader.take(piece);
                seen.extend(events(&mut reader));
            }
            assert_eq!(seen, all, "in steps of {step}");
        }
    }

    #[test]
    fn blocks_may_refer_to_the_dictionary_and_to_each_other() {
        // Two blocks of one stream, compressed with the dictionary by zlib; each holds {"streamtype": "error"}.
        let first = &[
            0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, 0x02, 0xa6, 0x23, 0x46, 0x70, 0x3a, 0x2b, 0x29,
            0x4a, 0x4d, 0xcc, 0x85, 0x16, 0x25, 0xac, 0xa9, 0xa0, 0x80, 0x06, 0x00, 0x00, 0x00,
            0xff, 0xff,
        ];
        let second = &[0xc2, 0x23, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff];
        let mut reader = Reader::new();
        reader.take(&opened(1, first));
        reader.take(&opened(3, second));
        for stream in [1, 3] {
            let headers = vec![("streamtype".to_owned(), "error".to_owned())];
            assert_eq!(reader.next(), Ok(Some(Event::Opened { stream, headers })));
        }
        assert_eq!(reader.next(), Ok(None));
    }

    #[test]
    fn what_is_no_spdy_is_told_from_it() {
        let broken = |bytes: &[u8]| {
            let mut reader = Reader::new();
            reader.take(bytes);
            reader.next().expect_err("broken")
        };
        assert_eq!(broken(&[0x80, 2, 0, 1, 0, 0, 0, 0]), Broken::Version(2));
        let long = Broken::Length {
            kind: SYN_STREAM,
            length: 0x00ff_ffff,
        };
        assert_eq!(broken(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]), long);
        let short = Broken::Length {
            kind: PING,
            length: 1,
        };
        assert_eq!(broken(&[0x80, 3, 0, 6, 0, 0, 0, 1, 0]), short);
        assert_eq!(broken(&opened(1, &[0x78, 0x01, 0xff])), Broken::Headers);
        assert_eq!(broken(&opened(1, b"no zlib")), Broken::Headers);
        // A compression bomb: a short input with a long output.
        let mut bomb = vec![0x78, 0x01];
        let mut packer = flate2::Compress::new(flate2::Compression::best(), false);
        let mut packed = Vec::with_capacity(8192);
        packer
            .compress_vec(&vec![0; 1 << 20], &mut packed, flate2::FlushCompress::Sync)
            .expect("compressible");
        bomb.extend(packed);
        assert_eq!(broken(&opened(1, &bomb)), Broken::Headers);
    }

    #[test]
    fn an_accepted_stream_has_a_header_block_that_a_reader_can_read() {
        let mut writer = Writer::default();
        let mut reader = Reader::new();
        for stream in [1, 3] {
            reader.take(&writer.accept(stream));
        }
        reader.take(&pong(2));
        assert_eq!(events(&mut reader), [Event::Ping(2)]);
    }
}
