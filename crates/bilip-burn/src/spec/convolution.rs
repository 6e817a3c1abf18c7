//! Convolutions of images in groups.

/// What a convolution sees of its images: windows of an odd side, every pixel or every second one
/// in each direction, zeros around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub kernel: usize,
    pub stride: usize,
}

impl Window {
    /// Zeros on each side of the image.
    pub fn pad(self) -> usize {
        (self.kernel - 1) / 2
    }
}

/// Images `[groups, channels, images, size, size]` and what a convolution sees of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convolved {
    pub window: Window,
    pub shape: [usize; 5],
}

impl Convolved {
    /// Rows of the windows' matrix: `channels·kernel²`.
    pub fn height(&self) -> usize {
        self.shape[1] * self.window.kernel * self.window.kernel
    }

    /// The side of an image after the convolution.
    pub fn side(&self) -> usize {
        self.shape[3] / self.window.stride
    }

    pub fn area(&self) -> usize {
        self.side() * self.side()
    }

    /// Numbers of a group of images.
    pub fn group(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Output channels of a matrix.
    pub fn outputs(&self, matrix: usize) -> usize {
        matrix / self.height()
    }

    /// The shape of what comes out.
    pub fn result(&self, matrix: usize) -> [usize; 5] {
        let [groups, _, images, _, _] = self.shape;
        [groups, self.outputs(matrix), images, self.side(), self.side()]
    }
}
