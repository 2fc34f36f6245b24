use std::path::Path;

use crate::testing::{Build, framed, partial, super_packet};
use crate::{check, from_device};

/// Drawn inputs; `MUX_PACKET_INPUTS` has another number: 1000000 take some minutes.
const DRAWN_INPUTS: u64 = 20_000;

/// Numbers for one run after the other: SplitMix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % bound.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        const EDGES: [u8; 8] = [0, 1, 2, 0x3f, 0x40, 0x7f, 0x80, 0xff];
        if self.below(2) == 0 {
            EDGES[self.below(8)]
        } else {
            self.below(256) as u8
        }
    }

    fn build(&mut self) -> Build {
        let length = self.below(400);
        let build = match self.below(8) {
            0 => Build::icmp4(self.byte()),
            1 => Build::icmp6(self.byte()),
            2 | 3 => Build::udp4(length),
            4 => Build::udp6(length),
            5 => Build::tcp6().payload(length),
            _ => Build::tcp4().payload(length),
        };
        let pad = [self.byte(), 0, self.byte(), 0, 0, 0, 0];
        let build = build
            .traffic_class(self.byte())
            .hop_limit(self.byte())
            .flags(self.byte());
        let build = if self.below(3) == 0 {
            build.dont_fragment()
        } else {
            build
        };
        match self.below(8) {
            0 => build.fragment(self.below(100) * 8, self.below(2) == 0),
            1 => build.extension([0, 43, 51, 60][self.below(4)], &pad),
            2 => build.options(&[self.byte(), 4, self.byte(), self.byte(), 1, 2, 4, 0xff]),
            3 => build.ip_options(&[self.byte(), 2, 1, 0]),
            _ => build,
        }
    }

    /// A packet that may pass, with a few changes: none, of single bytes, or cut.
    fn input(&mut self) -> Vec<u8> {
        let build = self.build();
        let bytes = build.bytes();
        let has_transport = [6, 17].contains(&if bytes[0] >> 4 == 6 {
            bytes[6]
        } else {
            bytes[9]
        });
        let is_fragment = bytes[0] >> 4 == 4 && (bytes[6] & 0x3f, bytes[7]) != (0, 0);
        let mut input = match self.below(3) {
            _ if !has_transport || is_fragment => framed(&bytes),
            0 => framed(&bytes),
            1 => partial(&bytes),
            _ => super_packet(&bytes, u16::try_from(1 + self.below(200)).unwrap()),
        };
        for _ in 0..[0, 0, 1, 1, 2, 5][self.below(6)] {
            let bound = if self.below(2) == 0 { 10 } else { input.len() };
            let at = self.below(bound.min(input.len()));
            input[at] = self.byte();
        }
        if self.below(10) == 0 {
            input.truncate(self.below(input.len()));
        }
        self.mend(&mut input);
        input
    }

    /// Makes the checksum of the IPv4 header right, mostly, so that changes are looked at further on.
    fn mend(&mut self, input: &mut [u8]) {
        if input.len() < 30 || input[10] >> 4 != 4 || self.below(8) == 0 {
            return;
        }
        let end = 10 + usize::from(input[10] & 0xf) * 4;
        if (30..=input.len()).contains(&end) {
            input[20..22].fill(0);
            let checksum = !crate::testing::sum(&input[10..end]);
            input[20..22].copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

fn run(input: &[u8], name: &str) {
    if let Err(cause) = std::panic::catch_unwind(|| super::packet(input)) {
        eprintln!("with {name}: {input:02x?}");
        std::panic::resume_unwind(cause);
    }
}

#[test]
fn drawn_packets_hold() {
    let count = std::env::var("MUX_PACKET_INPUTS").ok();
    let count = count.map_or(DRAWN_INPUTS, |count| count.parse().unwrap());
    let mut draw = Draw(1);
    let (mut passed, mut super_packets, mut mended) = (0, 0, 0);
    for number in 0..count {
        let input = draw.input();
        run(&input, &format!("input {number}"));
        if let Ok(packet) = check(&input) {
            passed += 1;
            super_packets += u64::from(packet.segments() > 1);
        } else if from_device(&mut input.clone()).is_ok() {
            mended += 1;
        }
    }
    // They are neither all refused nor all taken.
    assert!(
        passed > count / 10 && passed < count,
        "{passed} of {count} passed"
    );
    assert!(
        super_packets > count / 50,
        "{super_packets} super-packets of {count}"
    );
    assert!(
        mended > count / 100,
        "{mended} of {count} were brought into form"
    );
}

#[test]
fn drawn_bytes_hold() {
    let mut draw = Draw(2);
    for number in 0..DRAWN_INPUTS {
        let length = draw.below(200);
        let input: Vec<u8> = (0..length).map(|_| draw.byte()).collect();
        run(&input, &format!("bytes {number}"));
    }
}

#[test]
fn the_corpus_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/packet");
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{} inputs", files.len());
    for file in files {
        run(&std::fs::read(&file).unwrap(), &file.display().to_string());
    }
}
