"""Plain convolutional networks: FedTGP's CNN4, the eight of HtCNN8, and FedPAGR's CNN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from protea.core.errors import ConfigError
from protea.models.shapes import image_shape

CHANNELS = (32, 64)


def convolutional(
    shape: tuple[int, ...], *, convs: int = 2, hidden: Sequence[int] = (), padding: int = 0, width: int = 512
) -> nn.Module:
    """Make a network of ``convs`` (1 or 2) times 5x5 convolution, ReLU, 2x2 max; then hidden layers, one of ``width``.

    Every linear layer is followed by ReLU.  The first one is as wide as the image makes it; the
    reference codes edit that number by hand.
    """
    channels, *size = image_shape(shape)
    if convs not in (1, 2):
        raise ConfigError(f"convs is {convs}; it may be 1 or 2.")
    layers: list[nn.Module] = []
    for out in CHANNELS[:convs]:
        layers += [nn.Conv2d(channels, out, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        channels, size = out, [(side + 2 * padding - 4) // 2 for side in size]
    if min(size) < 1:
        least = 1
        for _ in range(convs):
            least = 2 * least + 4 - 2 * padding
        raise ConfigError(
            f"images of {shape[1]}x{shape[2]} are too small for it; it needs {least}x{least}.  "
            "Use cnn, or a member of the family tiny5."
        )
    layers.append(nn.Flatten())
    features = channels * size[0] * size[1]
    for out in (*hidden, width):
        layers += [nn.Linear(features, out), nn.ReLU()]
        features = out
    return nn.Sequential(*layers)


cnn4 = partial(convolutional, convs=2)

htcnn1 = partial(convolutional, convs=1)
htcnn2 = partial(convolutional, convs=2)  # the same as cnn4
htcnn3 = partial(convolutional, convs=1, hidden=(512,))
htcnn4 = partial(convolutional, convs=2, hidden=(512,))
htcnn5 = partial(convolutional, convs=1, hidden=(1024,))
htcnn6 = partial(convolutional, convs=2, hidden=(1024,))
htcnn7 = partial(convolutional, convs=1, hidden=(1024, 512))
htcnn8 = partial(convolutional, convs=2, hidden=(1024, 512))

# FedPAGR does not say what its CNN is.  We take the one of the first federated learning paper
# (McMahan et al. 2017), whose padding lets it take images down to 4x4.
cnn = partial(convolutional, convs=2, padding=2)
