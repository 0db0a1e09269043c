// SPDX-License-Identifier: Apache-2.0
const done = arguments[1], image = new Image();
image.onload = () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const pen = canvas.getContext("2d");
    pen.drawImage(image, 0, 0);
    const pixels = new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer);
    done(new Set(pixels).size);
};
image.src = "data:image/png;base64," + arguments[0];
