# syntax=docker/dockerfile:1
# The image of `mullion controller` and all other commands: one static program and the certificates of public authorities, nothing else.
#
#   docker build -t mullion .
#   docker build --target program --output . .        # the program alone

FROM rust:1.95-alpine AS build
# ring and mimalloc are compiled from C. On Alpine the host's own target is musl's, which links everything statically.
RUN apk add --no-cache build-base ca-certificates-bundle
WORKDIR /src
# A published program is built once and run often.
ENV CARGO_PROFILE_RELEASE_LTO=thin
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked -p mullion --features aws && cp target/release/mullion /mullion
# A program that wants a loader would not start in an empty image.
RUN readelf --program-headers /mullion >/headers && if grep -q INTERP /headers; then echo 'mullion is not static' >&2; exit 1; fi

FROM scratch AS program
COPY --from=build /mullion /mullion

FROM scratch
LABEL org.opencontainers.image.source=https://github.com/mullion/mullion \
      org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=program /mullion /mullion
# The root may be read-only: `mullion controller` writes no file.
USER 65532:65532
ENTRYPOINT ["/mullion"]
